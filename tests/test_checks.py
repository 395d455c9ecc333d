"""Numpy in, numpy out; tensors in, tensors out; what is neither, no path or no configuration is named."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import mirrormax as mm
from mirrormax import data, training
from mirrormax._arrays import in_kind
from mirrormax.geometry import lp_norm


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@in_kind
def pair(a: Tensor, b: Tensor | None = None, dims: list[int] | None = None) -> Pair:
    assert dims is None or isinstance(dims, list)
    return Pair(a, a if b is None else b)


@in_kind
def nested(a: Tensor) -> tuple[Tensor, tuple[Tensor, str]]:
    return a, (a, "name")


def test_named_tuples_are_answered_entry_by_entry():
    array = np.ones(3)
    result = pair(array, dims=[0])
    assert isinstance(result, Pair)
    assert isinstance(result.first, np.ndarray)
    assert isinstance(pair(a=array, b=[1, 2]).second, np.ndarray)
    outer, (inner, name) = nested(array)
    assert isinstance(outer, np.ndarray)
    assert isinstance(inner, np.ndarray)
    assert name == "name"


def test_one_tensor_is_enough_to_get_tensors():
    result = pair(np.ones(3), torch.ones(3))
    assert isinstance(result.first, Tensor)
    assert isinstance(result.second, Tensor)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int64, np.int8, np.bool_])
def test_types_are_kept(dtype):
    assert pair(np.ones(3, dtype)).first.dtype == dtype


def test_list_of_dimensions_stays_a_list():
    w = torch.ones(2, 3, 4)
    assert lp_norm(w, 2, dim=[-2, -1]).shape == (2,)
    assert lp_norm(w.numpy(), 2, dim=[-2, -1]).shape == (2,)


def test_arrays_that_torch_cannot_share_are_copied():
    base = np.arange(6.0)
    frozen = base.copy()
    frozen.flags.writeable = False
    for array in (base[::-1], frozen, base.astype(">f8"), np.broadcast_to(base, (2, 6))):
        np.testing.assert_array_equal(pair(array).first, array)


def test_too_many_arguments_are_refused_as_python_does():
    with pytest.raises(TypeError, match="positional argument"):
        pair(np.ones(1), np.ones(1), None, np.ones(1))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([[1.0, 2.0], [3.0]], ValueError, "a is made of lists of unequal length"),
        (np.array(["x"]), TypeError, "a must hold real numbers, got <U1"),
        (np.array([None]), TypeError, "a must hold real numbers, got object"),
        (np.array([2**63], dtype=np.uint64), ValueError, "a holds 9223372036854775808"),
    ],
    ids=str,
)
def test_what_is_no_array_of_numbers_is_refused_by_name(value, error, message):
    with pytest.raises(error, match=message):
        pair(value)


def test_types_that_torch_lacks_are_widened():
    assert pair(np.ones(2, np.uint16)).first.dtype == np.int64
    assert pair(np.ones(2, np.longdouble)).first.dtype == np.float64
    assert pair((1.0, 2.0)).first.tolist() == [1.0, 2.0]


NO_PATH = {"load_problem": data.load_problem, "load_corpus": data.load_corpus, "load_tokenizer": data.load_tokenizer}


@pytest.mark.parametrize("value", [None, 3])
@pytest.mark.parametrize("name", NO_PATH)
def test_what_is_no_path_is_named(name, value):
    with pytest.raises(TypeError, match=rf"^\w+ must be a path, got {value} \(\w+\)"):
        NO_PATH[name](value)


@pytest.mark.parametrize("value", [None, 3, "x"])
def test_what_is_no_array_is_named(value):
    with pytest.raises(TypeError, match=r"^reference must be an array or a tensor of numbers, got "):
        mm.directional_divergence(value, value, p=2)


@pytest.mark.parametrize("value", [None, 3, "x", ["x"]])
@pytest.mark.parametrize("function", [mm.equivalent_lr, mm.sparse_start])
def test_what_holds_no_tensors_is_named(function, value):
    with pytest.raises(TypeError, match=r"^params must be a list of tensors, .* got "):
        function(value, 0.1, **({"p": 1.5} if function is mm.equivalent_lr else {}))


@pytest.mark.parametrize("function", [training.prepare, training.run_key])
def test_what_is_no_configuration_is_named(function):
    with pytest.raises(TypeError, match=r"^config must be a configuration, .* got 'x' \(str\)"):
        function("x")
