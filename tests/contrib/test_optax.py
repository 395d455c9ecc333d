"""mirror_descent of optax makes the steps of the torch optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from optimizer_table import parameters as all_parameters

from mirrormax import MirrorDescent
from mirrormax.contrib.optax import mirror_descent

STEPS = 50
GLOBAL = {"normalize": "global", "momentum": 0.9}
TENSOR = {"normalize": "tensor"}
NESTEROV = {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}
# Each of these compiles for a second: every p and every option in double precision, which tells the finer difference,
# and both branches of single precision, p below 2 and above it.
RUNS = [
    ("float64", 1.1, GLOBAL),
    ("float64", 1.1, NESTEROV),
    ("float64", 1.75, TENSOR),
    ("float64", 2.0, NESTEROV),
    ("float64", 3.0, GLOBAL),
    ("float32", 1.1, TENSOR),
    ("float32", 3.0, NESTEROV),
]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    if hasattr(jax, "enable_x64"):
        enable_x64 = jax.enable_x64
    else:  # where jax that runs on Python 3.10 has it
        from jax.experimental import enable_x64
    with enable_x64(request.param == "float64"):
        yield request.param


def parameters(dtype):
    return all_parameters(dtype)[1:]  # a vector, a scalar and a matrix


def gradients(step, params):
    generator = np.random.default_rng(step)
    return [0.1 * generator.standard_normal(param.shape) for param in params]


def by_torch(dtype, lr, **options):
    params = parameters(getattr(torch, dtype))
    optimizer = MirrorDescent(params, lr=lr(0), **options)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = lr(step)
        for param, g in zip(params, gradients(step, params), strict=True):
            param.grad = torch.from_numpy(np.asarray(g)).to(param.dtype)
        optimizer.step()
    return [param.detach().numpy() for param in params]


def by_optax(tx, dtype):
    params = [jnp.asarray(param.detach().numpy()) for param in parameters(getattr(torch, dtype))]
    stacked = [jnp.asarray(np.stack(g), dtype) for g in zip(*(gradients(k, params) for k in range(STEPS)), strict=True)]

    def step(carry, grads):
        params, state = carry
        updates, state = tx.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), None

    (params, _), _ = jax.jit(lambda start: jax.lax.scan(step, start, stacked))((params, tx.init(params)))
    assert all(param.dtype == dtype for param in params)
    return [np.asarray(param) for param in params]


def same(ours, theirs, dtype):
    """To 1e-5 of each tensor's largest entry, or 1e-12 in double precision.

    The two round in another order, and at p = 1.1 a relative error of u is ten times as large in w.
    """
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


@pytest.mark.parametrize(("dtype", "p", "options"), RUNS, indirect=["dtype"], ids=str)
def test_fifty_steps_are_those_of_the_torch_optimizer(dtype, p, options):
    lr = 0.01 * (p - 1)  # as equivalent_lr has it for weights of ordinary size
    ours = by_optax(mirror_descent(lr, p, **options), dtype)
    same(ours, by_torch(dtype, lambda step: lr, p=p, **options), dtype)


def test_a_schedule_moves_the_step_size(dtype):
    schedule = optax.cosine_decay_schedule(0.02, STEPS)
    ours = by_optax(mirror_descent(schedule, 1.5, momentum=0.9), dtype)
    same(ours, by_torch(dtype, lambda step: float(schedule(step)), p=1.5, momentum=0.9), dtype)


def test_compiled_and_not_are_the_same():
    tx = mirror_descent(0.01, 1.5, normalize="global")
    w, g = {"a": jnp.array([0.5, -0.2]), "b": (jnp.array(0.3),)}, {"a": jnp.array([1.0, 1.0]), "b": (jnp.array(-2.0),)}
    state = tx.init(w)
    ours, theirs = tx.update(g, state, w), jax.jit(tx.update)(g, state, w)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_p_2_is_sgd(dtype):
    same(by_optax(mirror_descent(0.01, momentum=0.9), dtype), by_optax(optax.sgd(0.01, momentum=0.9), dtype), dtype)


def test_injected_hyperparameters_may_change_while_running():
    tx = optax.inject_hyperparams(mirror_descent)(lr=0.1, p=1.5, momentum=0.9, weight_decay=0.01)
    plain = mirror_descent(0.1, 1.5, momentum=0.9, weight_decay=0.01)
    w = {"a": jnp.array([0.5, -0.2])}
    g = {"a": jnp.array([1.0, 1.0])}
    ours, state = tx.update(g, tx.init(w), w)
    theirs, _ = plain.update(g, plain.init(w), w)
    np.testing.assert_allclose(ours["a"], theirs["a"], rtol=1e-6)
    state.hyperparams["lr"] = jnp.asarray(0.0)
    state.hyperparams["weight_decay"] = jnp.asarray(0.0)
    moved = optax.apply_updates(w, ours)
    still, _ = tx.update(g, state, moved)
    np.testing.assert_allclose(still["a"], 0.0, atol=1e-7)


def test_attention_weights_alone_may_go_under_mirror_descent():
    params = {"query": jnp.array([0.5, 0.0]), "bias": jnp.array([1.0])}
    labels = {"query": "attention", "bias": "rest"}
    tx = optax.multi_transform({"attention": mirror_descent(0.1, 1.5), "rest": optax.sgd(0.1)}, labels)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = jax.jit(tx.update)(grads, tx.init(params), params)
    moved = optax.apply_updates(params, updates)
    np.testing.assert_allclose(moved["query"], [(0.5**0.5 - 0.1) ** 2, -(0.1**2)], rtol=1e-6)
    np.testing.assert_allclose(moved["bias"], 0.9, rtol=1e-6)


def test_half_precision_weights_accumulate_steps_below_their_resolution():
    w = jnp.ones(3, jnp.bfloat16)
    tx = mirror_descent(1e-4, 1.5)
    state = tx.init(w)
    for _ in range(100):
        updates, state = tx.update(jnp.ones(3, jnp.bfloat16), state, w)
        w = optax.apply_updates(w, updates)
    assert w.dtype == jnp.bfloat16
    np.testing.assert_array_equal(w, jnp.full(3, 0.99**2, jnp.bfloat16))


def test_an_entry_whose_weight_underflows_is_not_forgotten():
    w = jnp.zeros(1)
    tx = mirror_descent(1e-6, 1.1)
    state = tx.init(w)
    for _ in range(10):
        updates, state = tx.update(jnp.ones(1), state, w)
        w = optax.apply_updates(w, updates)
    assert float(w[0]) == 0.0
    np.testing.assert_allclose(state.dual, -1e-5, rtol=1e-5)


def test_gradients_of_zero_move_nothing_when_normalised():
    w = jnp.array([0.5, -0.5])
    for normalize in ("tensor", "global"):
        tx = mirror_descent(0.1, 1.5, normalize=normalize)
        updates, _ = tx.update(jnp.zeros(2), tx.init(w), w)
        np.testing.assert_allclose(updates, 0.0, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, "lr must be a finite number at least 0, got -1.0"),
        ({"p": 1}, ValueError, "p must be a finite number greater than 1, got 1"),
        ({"p": "2"}, TypeError, "p must be a number, got '2'"),
        ({"p": 8.0}, ValueError, "jax_enable_x64"),
        ({"momentum": 1.0}, ValueError, "momentum must be a finite number"),
        ({"weight_decay": -0.1}, ValueError, "weight_decay must be a finite number"),
        ({"nesterov": True}, ValueError, "nesterov=True needs momentum > 0"),
        ({"normalize": "layer"}, ValueError, "normalize must be None, 'tensor' or 'global', got 'layer'"),
    ],
    ids=str,
)
def test_bad_hyperparameters_are_refused_by_name_and_value(options, error, message):
    with pytest.raises(error, match=message):
        mirror_descent(**{"lr": 0.1, **options})


def test_what_it_cannot_step_is_refused():
    tx = mirror_descent(0.1)
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(jnp.ones(1), tx.init(jnp.ones(1)))
    with pytest.raises(TypeError, match="real floating-point"):
        tx.init(jnp.ones(1, jnp.int32))
