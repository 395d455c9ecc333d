import pytest
from tiny import result

from mirrormax._files import save_arrays
from mirrormax.experiments import EXPERIMENTS
from mirrormax.experiments.contract import load_experiment
from mirrormax.report.figures import FIGURES, draw
from mirrormax.report.style import RULES


def test_every_experiment_has_a_figure():
    assert list(FIGURES) == list(EXPERIMENTS)


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Fewer pixels, for speed."""
    monkeypatch.setitem(RULES, "savefig.dpi", 50)


def drawn(name, data, folder):
    save_arrays(folder / "data.npz", **data)
    return [path.read_bytes() for path in draw(name, folder)]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_from_saved_data_alone(name, tmp_path, monkeypatch):
    experiment = load_experiment(name)
    data = result(name)
    monkeypatch.setattr(experiment, "run", None)
    svg, png = drawn(name, data, tmp_path)
    assert svg.startswith(b"<?xml")
    assert png.startswith(b"\x89PNG")
    assert len(png) > 5000


def test_a_figure_is_the_same_each_time_and_another_for_other_data(tmp_path):
    data = result("fig2")
    first, second = (drawn("fig2", data, tmp_path / folder) for folder in "ab")
    assert first == second
    assert drawn("fig2", data | {"W": 2 * data["W"][::-1]}, tmp_path / "c") != first
