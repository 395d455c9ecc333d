"""A history keeps one run per line, and a run is compared with the newest of its own kind of processor."""

import json
import os

import pytest

from mirrormax.bench.ratios import append_run, check_appendable, comparison, describe, processor, read_history


def made_up(date, processor="Fast 9000", torch="AVX2", **ratios):
    return {
        "kind": "mirrormax bench",
        "date": date,
        "processor": processor,
        "cores": 2,
        "dispatch": {"torch": torch, "numba": None},
        "versions": {"mirrormax": "1.0"},
        "ratios": {"optimizer": ratios},
    }


def rows(text):
    """Name to (now, then, now/then), of the lines that have them."""
    return {
        " ".join(line.split()[:-3]): tuple(line.split()[-3:]) for line in text.splitlines() if "optimizer: " in line
    }


def test_a_run_says_all_that_its_ratios_depend_on():
    run = describe({"optimizer": {"a": 1.5, "b": float("nan")}})
    assert run["ratios"] == {"optimizer": {"a": 1.5, "b": None}}
    assert {"mirrormax", "python", "torch", "numpy", "scipy"} == set(run["versions"])
    assert {"torch", "numpy", "blas", "numba"} == set(run["dispatch"])
    assert run["dispatch"]["torch"]
    assert run["processor"]
    assert run["cores"] >= 1
    assert json.loads(json.dumps(run, allow_nan=False)) == run


def test_the_processor_is_the_systems_model_name(tmp_path):
    (tmp_path / "cpuinfo").write_text("vendor_id : X\nmodel name\t: Fast 9000 @ 3 GHz\nmodel name\t: other\n")
    assert processor(tmp_path / "cpuinfo") == "Fast 9000 @ 3 GHz"
    assert processor(tmp_path / "none")


def test_runs_are_appended_in_order_and_read_back(tmp_path):
    path = tmp_path / "history.jsonl"
    first, second = made_up("2024-01-01", a=1.0), made_up("2024-01-02", a=2.0)
    append_run(path, first)
    append_run(path, second)
    assert read_history(path) == [first, second]
    assert path.read_text().count("\n") == 2
    assert os.listdir(tmp_path) == ["history.jsonl"]


def test_a_last_line_without_its_end_keeps_its_own_line(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text(json.dumps(made_up("2024-01-01", a=1.0)))
    append_run(path, made_up("2024-01-02", a=2.0))
    assert [run["date"] for run in read_history(path)] == ["2024-01-01", "2024-01-02"]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "[1]",
        "not JSON",
        json.dumps({**made_up("2024-01-01"), "kind": "mirrormax tune"}),
        json.dumps({**made_up("2024-01-01"), "ratios": {"optimizer": {"a": "fast"}}}),
        json.dumps({**made_up("2024-01-01"), "ratios": {"optimizer": 3}}),
        json.dumps({**made_up("2024-01-01"), "ratios": {"optimizer": {"a": float("inf")}}}),
        json.dumps({name: value for name, value in made_up("2024-01-01").items() if name != "processor"}),
        "[" * 100_000,
    ],
)
def test_a_line_that_is_no_run_is_named_and_the_file_left_alone(tmp_path, line):
    path = tmp_path / "history.jsonl"
    content = json.dumps(made_up("2024-01-01", a=1.0)) + f"\n{line}\n"
    path.write_text(content)
    for call in (read_history, check_appendable, lambda path: append_run(path, made_up("2024-01-02"))):
        with pytest.raises(ValueError, match=r"line 2 of .*history\.jsonl is no run of 'mirrormax bench'"):
            call(path)
    assert path.read_text() == content


def test_a_link_is_not_written_through(tmp_path):
    append_run(tmp_path / "real.jsonl", made_up("2024-01-01", a=1.0))
    before = (tmp_path / "real.jsonl").read_text()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real.jsonl")
    with pytest.raises(ValueError, match="is a link"):
        append_run(tmp_path / "link.jsonl", made_up("2024-01-02"))
    assert (tmp_path / "real.jsonl").read_text() == before
    assert (tmp_path / "link.jsonl").is_symlink()


def test_the_newest_run_of_the_same_processor_is_beside_each_ratio():
    history = [
        made_up("2024-03-01", a=4.0),
        made_up("2024-01-01", a=8.0, gone=1.0),
        made_up("2024-04-01", torch="AVX512", a=16.0),
        made_up("2024-05-01", processor="Slow 1", a=32.0),
    ]
    text = comparison(made_up("2024-06-01", a=2.0, new=7.0), history)
    assert "the newest run of this processor: 2024-03-01, mirrormax 1.0" in text
    assert rows(text) == {"optimizer: a": ("2", "4", "0.5"), "optimizer: new": ("7", "—", "—")}


def test_a_run_of_another_processor_is_called_that():
    history = [made_up("2024-05-01", processor="Slow 1", a=32.0), made_up("2024-04-01", torch="AVX512", a=16.0)]
    text = comparison(made_up("2024-06-01", a=2.0), history)
    assert "OF ANOTHER PROCESSOR" in text
    assert "then Slow 1, torch AVX2" in text
    assert "now  Fast 9000, torch AVX2" in text
    assert rows(text) == {"optimizer: a": ("2", "32", "0.0625")}


def test_nothing_comparable_is_said():
    other = {**made_up("2024-01-01"), "ratios": {"svm": {"a": 1.0}}}
    assert comparison(made_up("2024-06-01", a=2.0), [other]) == "The history has no run of these benchmarks."
    assert comparison(made_up("2024-06-01", a=2.0), []) == "The history has no run of these benchmarks."
