"""Studies are the same however they are interrupted, and what is proposed depends on the plan alone."""

import csv
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from golden import check
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState, create_trial
from pictures import save_dots

from mirrormax import commands
from mirrormax.nets import VisionConfig, VisionTransformer
from mirrormax.training import VisionTraining, default_lr
from mirrormax.tuning.study import REVISION, Plan, configured, first_points, propose, run_trial

from .studies import TINY, flags

TRIALS = 6


@pytest.fixture(scope="module", autouse=True)
def dots():
    """tests/tuning/test_command.py looks at the picture."""
    with pytest.MonkeyPatch.context() as patch:
        save_dots(patch.setattr)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study that nobody interrupted."""
    out = tmp_path_factory.mktemp("study") / "whole"
    assert commands.main(flags(out, TRIALS)) == 0
    return out


def rows(out):
    with (out / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_study_begins_with_known_points_and_tells_the_best(whole):
    found = rows(whole)
    assert [row["p"] for row in found[:4]] == ["1.1", "1.5", "2.0", "3.0"]
    assert all(float(row["multiple"]) == 1 and row["state"] == "complete" for row in found[:4])
    best = json.loads((whole / "best.json").read_text())
    complete = [row for row in found if row["state"] == "complete"]
    assert best["validation_accuracy"] == max(float(row["validation_accuracy"]) for row in complete)
    assert best["trials"] == TRIALS
    assert (whole / best["model"] / "model.safetensors").is_file()
    assert (whole / "tune.svg").read_bytes().startswith(b"<?xml")
    assert (whole / "tune.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_of_a_study_are_those_of_its_revision(whole):
    quantities = ("p", "multiple", "lr", "validation_loss")
    points = {row["trial"]: [float(row[name]) for name in quantities] for row in rows(whole)[:4]}
    check("tune", REVISION, points, rtol=1e-3)


def test_the_command_it_tells_is_the_run_that_won(whole):
    from mirrormax.commands import build_parser
    from mirrormax.commands.train import configuration

    best = json.loads((whole / "best.json").read_text())
    words = best["command"].split()[1:]
    assert configuration(build_parser(words).parse_args(words)).to_dict() == best["config"]
    run = json.loads((whole / best["model"] / ".." / "config.json").resolve().read_text())
    assert run.items() >= best["config"].items()


def test_a_finished_study_is_not_done_again(whole, monkeypatch):
    before = (whole / "trials.csv").read_bytes(), (whole / "best.json").read_bytes()
    monkeypatch.setattr("mirrormax.tuning.study.run_trial", None)
    assert commands.main(flags(whole, TRIALS)) == 0
    assert ((whole / "trials.csv").read_bytes(), (whole / "best.json").read_bytes()) == before


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a second process has to import everything, on a machine that may be busy
def test_a_study_killed_in_a_trial_goes_on_to_the_same_result(whole, tmp_path):
    out = tmp_path / "killed"
    running = subprocess.Popen([sys.executable, "-m", "mirrormax", *flags(out, TRIALS)])
    try:
        while not (out / "trials" / "0001").exists() and running.poll() is None:
            time.sleep(0.01)
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert running.returncode == -signal.SIGKILL
    assert not (out / "best.json").exists()
    assert commands.main(flags(out, TRIALS)) == 0
    for name in ("trials.csv", "tune.svg", "best.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_fewer_trials_first_and_more_later_are_the_same_study(whole, tmp_path):
    for trials in (1, 5, TRIALS):
        assert commands.main(flags(tmp_path / "parts", trials)) == 0
        assert len(rows(tmp_path / "parts")) == trials
    assert (tmp_path / "parts" / "trials.csv").read_bytes() == (whole / "trials.csv").read_bytes()


@pytest.mark.slow
def test_two_processes_make_the_same_study(whole, tmp_path):
    assert commands.main(flags(tmp_path / "two", TRIALS, "--jobs", "2")) == 0
    assert (tmp_path / "two" / "trials.csv").read_bytes() == (whole / "trials.csv").read_bytes()


def finished(accuracy, epochs, excess=0.5):
    return create_trial(
        state=TrialState.COMPLETE,
        value=accuracy,
        params={"p - 1": excess},
        distributions={"p - 1": FloatDistribution(0.05, 3, log=True)},
        intermediate_values=dict.fromkeys(range(1, epochs + 1), accuracy),
    )


@pytest.mark.parametrize(("accuracy", "given_up"), [(1.0, True), (0.0, False)])
def test_a_trial_below_the_median_of_the_others_is_given_up(accuracy, given_up, tmp_path):
    config = replace(VisionTraining(**TINY), stop_accuracy=2.0)
    outcome = run_trial(config, tmp_path / "trial", [finished(accuracy, 2)] * 4, None, "cpu")
    assert (not outcome.numbers) is given_up
    assert list(outcome.scores) == ([1] if given_up else [1, 2])
    assert (tmp_path / "trial" / "summary.json").exists() is not given_up
    assert ("hoyer" in outcome.numbers) is not given_up


def test_proposals_depend_on_the_seed_and_the_number_and_stay_in_the_space():
    plan = Plan(VisionTraining(), ("md", "adamw"), 40)
    earlier = [finished(0.5, 2)] * 12
    proposed = [propose(plan, earlier, number).params for number in range(5, 17)]
    assert proposed == [propose(plan, earlier, number).params for number in range(5, 17)]
    assert len({tuple(point.items()) for point in proposed}) == len(proposed)
    assert proposed[0] != propose(replace(plan, base=VisionTraining(seed=1)), earlier, 5).params
    assert {point["optimizer"] for point in proposed} == {"md", "adamw"}
    for point in proposed:
        assert ("p - 1" in point) is (point["optimizer"] == "md")
        assert 0.05 <= point.get("p - 1", 1.0) <= 3
        assert 1 / 30 <= point[f"{point['optimizer']} multiple"] <= 30


def test_the_sampler_learns_from_the_earlier_trials():
    plan = Plan(VisionTraining(), ("md",), 100)
    excesses = [0.06, 0.08, 0.1, 0.12, 1.0, 1.5, 2.0, 2.5]

    def mean_excess(good):
        earlier = [finished(0.9 if (excess < 0.5) is good else 0.1, 2, excess) for excess in excesses * 3]
        return sum(propose(plan, earlier, number).params["p - 1"] for number in range(30, 45)) / 15

    assert mean_excess(True) < mean_excess(False)


def test_step_sizes_are_multiples_of_the_rule():
    torch.manual_seed(0)
    model = VisionTransformer(VisionConfig(image_size=8, channels=1, dim=16, hidden=16, blocks=1, heads=1, head_dim=16))
    base = VisionTraining()
    config = configured(base, {"optimizer": "md", "p - 1": 0.254, "md multiple": 4.0}, model)
    assert (config.optimizer, config.p) == ("md", 1.25)
    assert config.lr == pytest.approx(4 * default_lr(model, replace(base, optimizer="md", p=1.25)), rel=0.005)
    assert configured(base, {"optimizer": "adamw", "adamw multiple": 0.5}, model).lr == pytest.approx(5e-4)


def test_every_optimizer_has_a_first_point():
    points = first_points(["adabreg", "mirror", "md", "sgd", "adamw"])
    assert [point["optimizer"] for point in points] == ["adabreg", *["mirror"] * 4, *["md"] * 4, "sgd", "adamw"]


def damage(path, how):
    if how == "another program's":
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE things (name TEXT)")
        connection.close()
    else:
        content = path.read_bytes()
        path.write_bytes({"empty": b"", "truncated": content[: len(content) // 2], "noise": b"\7" * 5000}[how])


@pytest.mark.parametrize("how", ["empty", "truncated", "noise", "another program's"])
def test_a_damaged_study_is_refused_in_one_sentence_and_left_alone(how, whole, tmp_path, capsys):
    out = tmp_path / "damaged"
    shutil.copytree(whole, out)
    path = out / "study.db"
    damage(path, how)
    before = path.read_bytes()
    assert commands.main(flags(out, TRIALS)) == 2
    err = capsys.readouterr().err
    assert "study.db is damaged or not a study of mirrormax; begin anew with --force" in err
    assert err.count("\n") == 1
    assert path.read_bytes() == before


def test_another_plan_is_refused_and_names_what_differs(whole, capsys):
    assert commands.main(flags(whole, TRIALS, "--epochs", "3", "--optimizers", "md", "adamw")) == 2
    err = capsys.readouterr().err
    assert "differs in epochs, optimizers" in err
    assert err.count("\n") == 1


def test_force_begins_anew(whole, tmp_path):
    out = shutil.copytree(whole, tmp_path / "again")
    (out / "study.db").write_bytes(b"noise")
    (out / "notes.txt").write_text("mine")
    assert commands.main(flags(out, 1, "--force")) == 0
    assert len(rows(out)) == 1
    assert [path.name for path in (out / "trials").iterdir()] == ["0000"]
    assert (out / "notes.txt").read_text() == "mine"
