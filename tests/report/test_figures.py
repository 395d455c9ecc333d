import pytest
from tiny import TINY

from mirrormax._files import save_arrays
from mirrormax.experiments import EXPERIMENTS
from mirrormax.experiments.contract import load_experiment
from mirrormax.experiments.work import Work
from mirrormax.report.figures import FIGURES, draw


def test_every_experiment_has_a_figure():
    assert list(FIGURES) == list(EXPERIMENTS)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_from_saved_data_alone_and_the_same_each_time(name, tmp_path, monkeypatch):
    experiment = load_experiment(name)
    data = experiment.run(TINY[name], Work())
    monkeypatch.setattr(experiment, "run", None)
    images = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        save_arrays(folder / "data.npz", **data)
        svg, png = draw(name, folder)
        assert png.read_bytes().startswith(b"\x89PNG")
        assert svg.read_bytes().startswith(b"<?xml")
        assert len(png.read_bytes()) > 5000
        images.append((svg.read_bytes(), png.read_bytes()))
    assert images[0] == images[1]
