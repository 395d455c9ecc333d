"""How many modules a reader walks through to follow one call: those in which a function runs.

Each walk is taken twice and counted the second time, when everything is imported and compiled. The bounds are what was
reached; a change that needs one module more has to say here what it is for.
"""

import sys
import threading
from pathlib import Path

import pytest
from audited_models import text_model, words
from matplotlib.figure import Figure
from tiny import TINY

import mirrormax as mm
from mirrormax.commands import main
from mirrormax.experiments import load_experiment

ROOT = Path(mm.__file__).parent


def walk(call):
    """The modules of this package in which a function runs during ``call()``, in threads too."""
    seen = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            seen.add(frame.f_code.co_filename)

    call()
    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    files = [Path(name) for name in seen if name.endswith(".py")]
    return {str(file.relative_to(ROOT).with_suffix("")) for file in files if file.is_relative_to(ROOT)}


def in_room(found, *rooms):
    return {name for name in found if name.split("/")[0] in rooms}


def test_the_attention_svm_is_ten_modules_seven_of_them_of_its_room():
    problem = mm.data.sphere_problem(seed=0)
    alpha = mm.optimal_tokens(problem).alpha
    found = walk(lambda: mm.att_svm(problem, alpha, p=1.75))
    # What is asked and answered (api, solution), the problem in its own units (_types) and its rows, which solver
    # (dispatch), the solver and the loop that it goes through.
    of_svm = {"api", "solution", "_types", "rows", "dispatch", "solvers/interior", "loop"}
    assert in_room(found, "svm") == {f"svm/{name}" for name in of_svm}
    # The one validator of problems, of other arguments, and of p.
    assert found - in_room(found, "svm") == {"problem", "_checks", "geometry/lp"}


def test_a_figure_needs_forty_modules_and_no_other_experiment(tmp_path, monkeypatch):
    for name, config in TINY.items():
        monkeypatch.setitem(load_experiment(name).PROFILES, "quick", config)
    blank = Figure(figsize=(1, 1))
    monkeypatch.setattr(load_experiment("fig4"), "draw", lambda data: blank)  # what draws is in two modules of these
    line = ["reproduce", "fig4", "--out", str(tmp_path / "results"), "--jobs", "1", "--quiet", "--force"]
    found = walk(lambda: main(line))
    figure = {"fig4", "_trials", "_work", "_contract", "_results", "__init__"}
    assert in_room(found, "experiments") == {f"experiments/{name}" for name in figure}
    mathematics = in_room(found, "attention", "dynamics", "geometry", "svm")
    assert len(mathematics) <= 19
    # The command, the page and the picture; files that are whole or not there; where data is, and its problems.
    assert len(found - mathematics - in_room(found, "experiments")) <= 15
    assert not in_room(found, "auditing", "nets", "optim", "theory", "training")


@pytest.mark.parametrize("controls", [0, 2])
def test_an_audit_is_ten_modules_of_its_room_and_the_solver(controls):
    model = text_model()
    found = walk(lambda: mm.audit(model, [words()], controls=controls, samples=4))
    assert len(in_room(found, "auditing")) <= 10
    solver = in_room(found, "svm", "problem")
    assert len(solver) <= 8
    assert len(found - in_room(found, "auditing") - solver) <= 8  # the model itself, norms and directions, threads
