"""Token-selection problems from files and from generators."""

from mirrormax.data.npz import read_npz, write_npz
from mirrormax.data.problems import Problem, example1, example2, load_problem, save_problem, sphere_problem

__all__ = [
    "Problem",
    "example1",
    "example2",
    "load_problem",
    "read_npz",
    "save_problem",
    "sphere_problem",
    "write_npz",
]
