"""A small problem for every p, with the tokens that a run from zero selects, and its constants."""

from functools import cache

import pytest

from mirrormax.data import sphere_problem
from mirrormax.dynamics import simulate
from mirrormax.theory import constants


@cache
def solved(p, seed=3):
    problem = sphere_problem(seed, n=3, T=4, d=5)
    run = simulate(problem.X, problem.y, problem.z, problem.v, p=p, steps=2000, record=3)
    return problem, constants(problem, run.alpha, p=p)


@pytest.fixture
def solve():
    return solved
