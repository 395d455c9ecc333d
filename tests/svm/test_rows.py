"""Three forms of the same constraint matrix, and the pieces the solvers are made of."""

import numpy as np
import pytest

from mirrormax.svm.rows import (
    LARGEST_PAIRS,
    BlockRows,
    DenseRows,
    FlatRows,
    longest_step,
    make_rows,
    power,
)
from mirrormax.svm.systems import Factor, ThinFactor


def outer_rows(x, z):
    return np.einsum("bnrd,bne->bnrde", x, z).reshape(len(x), -1, x.shape[-1] * z.shape[-1])


rng = np.random.default_rng(0)
x, z = rng.standard_normal((1, 3, 4, 5)), rng.standard_normal((1, 3, 6))
dense = outer_rows(x, z)
FORMS = {
    "dense": DenseRows(dense),
    "blocks": BlockRows(x, z),
    "flat": FlatRows(x.reshape(12, 5), np.repeat(np.arange(3), 4), z[0]),
}


def test_rows_are_outer_products():
    assert np.allclose(dense[0, 6], np.outer(x[0, 1, 2], z[0, 1]).ravel())


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_the_same_matrix(name):
    rows = FORMS[name]
    w, lam, weight = rng.standard_normal((1, 30)), rng.standard_normal((1, 12)), rng.random((1, 30))
    assert (rows.m, rows.size) == (12, 30)
    assert np.allclose(rows.dense(), dense)
    assert np.allclose(rows.fwd(w), (dense @ w[..., None])[..., 0])
    assert np.allclose(rows.adj(lam), (lam[:, None] @ dense)[:, 0])
    assert np.allclose(rows.gram(weight), (dense * weight[:, None]) @ dense.swapaxes(1, 2))
    assert np.allclose(rows.scaled(np.array([3.0])).dense(), 3 * dense)


@pytest.mark.parametrize("name", FORMS)
def test_some_rows_may_be_picked(name):
    keep = np.array([0, 3, 5, 11])
    part = FORMS[name].subset(keep)
    weight = rng.random((1, 30))
    picked = dense[:, keep]
    assert np.allclose(part.dense(), picked)
    assert np.allclose(part.gram(weight), (picked * weight[:, None]) @ picked.swapaxes(1, 2))
    assert np.allclose(part.fwd(weight), (picked @ weight[..., None])[..., 0])
    assert np.allclose(part.adj(np.ones((1, 4))), picked.sum(axis=1))


def test_pairs_of_queries_are_written_out_in_parts_where_there_are_many():
    many_x, many_z = rng.standard_normal((1, 120, 1, 2)), rng.standard_normal((1, 120, 300))
    assert 120 * many_z.size > LARGEST_PAIRS
    flat = FlatRows(many_x[0, :, 0], np.arange(120), many_z[0])
    weight = rng.random((1, 600))
    assert np.allclose(flat.gram(weight), DenseRows(outer_rows(many_x, many_z)).gram(weight))


def test_members_of_a_batch_may_be_picked():
    many_x, many_z = rng.standard_normal((4, 3, 2, 5)), rng.standard_normal((4, 3, 5))
    rows = make_rows(many_x, many_z)
    assert isinstance(rows, BlockRows)
    assert np.allclose(rows.take(np.array([1, 3])).dense(), outer_rows(many_x, many_z)[[1, 3]])
    assert np.allclose(rows.subset(np.array([0, 5])).dense(), outer_rows(many_x, many_z)[:, [0, 5]])


def test_a_large_problem_is_never_written_out():
    assert isinstance(make_rows(np.ones((1, 20, 10, 40)), np.ones((1, 20, 40))), FlatRows)


@pytest.mark.parametrize("batch", [1, 3])
def test_factor_solves_even_where_rounding_made_the_matrix_indefinite(batch):
    roots = rng.standard_normal((batch, 5, 5))
    definite = roots @ roots.swapaxes(1, 2) + np.eye(5)
    singular = np.ones((batch, 5, 5)) - 1e-17 * np.eye(5)
    right = rng.standard_normal((batch, 5))
    assert np.allclose((definite @ Factor(definite).solve(right)[..., None])[..., 0], right)
    assert np.isfinite(Factor(singular).solve(right)).all()


def test_power_through_logarithms_is_the_power():
    values = rng.standard_normal((40, 100))
    values[0, :5] = 0
    exponents = np.linspace(0, 30, 40)[:, None]
    assert np.allclose(power(values, exponents), np.abs(values) ** exponents, rtol=1e-11, atol=1e-250)


def test_longest_step_reaches_the_boundary_and_no_further():
    at, move = np.array([[1.0, 2.0], [1.0, 1.0]]), np.array([[-4.0, 1.0], [1.0, 1.0]])
    step = longest_step((at, move))
    assert step[0] == pytest.approx(0.25)
    assert step[1] > 1e200


def test_a_thin_factor_solves_the_system_of_many_rows():
    random = np.random.default_rng(3)
    matrix, weight, right = random.standard_normal((90, 4)), random.random(4), random.standard_normal((1, 90))
    diagonal = 10.0 ** random.uniform(-8, 2, 90)
    solution = ThinFactor(matrix, weight, diagonal).solve(right)[0]
    whole = (matrix * weight) @ matrix.T + np.diag(diagonal)
    assert np.linalg.norm(whole @ solution - right[0]) <= 1e-6 * np.linalg.norm(right)
