import numpy as np
import pytest

from mirrormax._files import save_arrays
from mirrormax.experiments import EXPERIMENTS
from mirrormax.report.figures import FIGURES, draw

DATA = {
    "sparsity": {
        "p": np.array([1.1, 2.0]),
        "W": np.eye(4)[None].repeat(2, 0),
        "attention": np.linspace(0, 1, 14).reshape(2, 7),
    },
    "step_size": {
        "p": np.array([1.1, 2.0]),
        "multiples": np.array([0.1, 1.0]),
        "lr": np.array([[0.1, 1.0], [0.2, 2.0]]),
        "accuracy": np.array([[0.1, 0.9], [0.2, 0.8]]),
    },
}


def test_every_experiment_has_a_figure():
    assert set(FIGURES) == set(EXPERIMENTS) == set(DATA)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_drawn_from_saved_data_alone_and_the_same_each_time(name, tmp_path):
    images = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        save_arrays(folder / "data.npz", **DATA[name])
        svg, png = draw(name, folder)
        assert png.read_bytes().startswith(b"\x89PNG")
        images.append((svg.read_bytes(), png.read_bytes()))
    assert images[0] == images[1]
    assert b"p = 1.1" in images[0][0] or b"1.1" in images[0][0]
