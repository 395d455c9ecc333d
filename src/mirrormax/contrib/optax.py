"""Mirror descent for JAX: the update of :class:`mirrormax.MirrorDescent` as an optax transformation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from mirrormax._checks import number
from mirrormax._extras import extra

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import optax

# The same numbers as in the torch optimizer: what is added to a norm, and the largest p for float32.
SMALLEST_NORM = 2.2e-16
LARGEST_P_IN_FLOAT32 = 7.0

Number = Any  # a Python number, or a traced one where optax.inject_hyperparams makes it so


class MirrorDescentState(NamedTuple):
    """Steps done, the dual variables u = ∇ψ(w), and the momentum (None without), shaped like the parameters."""

    count: jax.Array  # type: ignore[assignment]  # the name under which optax looks for it
    dual: Any
    momentum: Any


def mirror_descent(
    lr: Number | Callable[[jax.Array], Any],
    p: Number = 2.0,
    *,
    momentum: Number = 0.0,
    nesterov: bool = False,
    weight_decay: Number = 0.0,
    normalize: Literal["tensor", "global"] | None = None,
) -> optax.GradientTransformation:
    r"""Mirror descent with ψ(w) = (1/p)‖w‖_p^p, on the dual variables u = ∇ψ(w) as state:

    .. code-block:: text

        g ← g / (‖g‖_q + 2.2e-16)          if normalize; q = p/(p−1)
        d = g + λ u                        λ = weight_decay
        m ← μ m + d                        μ = momentum, m starts at 0
        d ← m, or d + μ m with nesterov    (only with momentum)
        u ← u − η d
        w ← sign(u) |u|^{1/(p−1)}

    ``update(gradients, state, parameters)`` returns w⁺ − w, to be the last link of a chain. The state is the
    truth: parameters that somebody else writes are set back by the next update, so call ``init`` again after
    that. u has at least 32 bits.

    It is the torch optimizer up to rounding: after 50 steps in float32 the weights agree to 1e-5 of a tensor's largest
    entry, in float64 to 1e-12. Near p = 1 rounding of u is multiplied by 1/(p−1) on its way into w.

    Args:
        lr: step size η, a number or an optax schedule; see :func:`mirrormax.equivalent_lr` for one to start from.
        p: exponent > 1; above 7, float64 must be enabled, because w^{p−1} leaves the range of float32.
        momentum: μ in [0, 1).
        nesterov: Nesterov's form of momentum; needs ``momentum > 0``.
        weight_decay: λ ≥ 0.
        normalize: ``"tensor"`` divides each gradient by its own dual norm, ``"global"`` all by their common one.

    >>> tx = mirror_descent(lr=0.1, p=1.5)
    >>> w = jnp.array([0.5, -0.5, 0.0])
    >>> updates, state = tx.update(jnp.array([0.0, 0.0, 1.0]), tx.init(w), w)
    >>> optax.apply_updates(w, updates).round(4) + 0.0
    Array([ 0.5 , -0.5 , -0.01], dtype=float32)
    """
    lr = lr if callable(lr) else _checked("lr", lr, at_least=0)
    p = _checked("p", p, above=1)
    momentum = _checked("momentum", momentum, at_least=0, below=1)
    weight_decay = _checked("weight_decay", weight_decay, at_least=0)
    if isinstance(p, float) and p > LARGEST_P_IN_FLOAT32 and jnp.result_type(float) != jnp.float64:
        raise ValueError(
            f"p={p!r} needs float64, because w^(p-1) leaves the range of float32; "
            "call jax.config.update('jax_enable_x64', True) first, or take p at most 7."
        )
    heavy = isinstance(momentum, jax.Array) or momentum != 0  # a traced one may be any
    if nesterov and not heavy:
        raise ValueError("nesterov=True needs momentum > 0, got momentum=0; set momentum, for example to 0.9.")
    if normalize not in (None, "tensor", "global"):
        raise ValueError(f"normalize must be None, 'tensor' or 'global', got {normalize!r}.")

    def init(params: optax.Params) -> MirrorDescentState:
        dual = jax.tree.map(lambda w: _signed_power(_widened(w, p), p - 1), params)
        return MirrorDescentState(jnp.zeros((), jnp.int32), dual, jax.tree.map(jnp.zeros_like, dual) if heavy else None)

    def update(
        updates: optax.Updates, state: MirrorDescentState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, MirrorDescentState]:
        if params is None:
            raise ValueError("mirror_descent needs the parameters; call update(gradients, state, parameters).")
        eta = lr(state.count) if callable(lr) else lr
        g = jax.tree.map(lambda g, u: jnp.asarray(g).astype(u.dtype), updates, state.dual)
        if normalize is not None:
            g = _normalized(g, p, common=normalize == "global")
        d, m = _plus(g, weight_decay, state.dual), state.momentum
        if heavy:
            m = _plus(d, momentum, m)
            d = _plus(d, momentum, m) if nesterov else m
        dual = _plus(state.dual, -eta, d)
        moved = jax.tree.map(lambda u, w: _moved(u, w, p), dual, params)
        return moved, MirrorDescentState(optax.safe_increment(state.count), dual, m)

    return optax.GradientTransformation(init, update)


def _plus(us: Any, factor: Number, ds: Any) -> Any:
    """u + factor·d; a schedule's number may be wider than the state, which keeps its type."""
    return jax.tree.map(lambda u, d: u + jnp.asarray(factor).astype(u.dtype) * d, us, ds)


def _moved(u: jax.Array, w: Any, p: Number) -> Any:
    """w⁺ − w, where w⁺ is what a weight of its own type can hold."""
    w = jnp.asarray(w)
    return _signed_power(u, 1 / (p - 1)).astype(w.dtype).astype(u.dtype) - w.astype(u.dtype)


def _normalized(grads: Any, p: Number, common: bool) -> Any:
    q = p / (p - 1)
    norms = jax.tree.map(lambda g: _norm(g, q), grads)
    if common and jax.tree.leaves(norms):
        total = _norm(jnp.stack(jax.tree.leaves(norms)), q)
        norms = jax.tree.map(lambda norm: total.astype(norm.dtype), norms)
    return jax.tree.map(lambda g, norm: g / (norm + SMALLEST_NORM), grads, norms)


def _norm(g: jax.Array, q: Number) -> Any:
    """‖g‖_q with the largest entry divided out first, so that nothing over- or underflows."""
    size = jnp.abs(g)
    largest = jnp.max(size, initial=0.0)
    unit = jnp.where((largest > 0) & (largest < math.inf), largest, 1.0)
    return unit * ((size / unit) ** q).sum() ** (1 / q)


def _signed_power(x: jax.Array, exponent: Number) -> Any:
    """sign(x) |x|^exponent; whole exponents, as 1/(p−1) often is, are multiplied out."""
    if isinstance(exponent, float) and abs(exponent - round(exponent)) < 1e-14 * exponent:
        exponent = round(exponent)
    return jnp.sign(x) * jnp.abs(x) ** exponent


def _widened(w: Any, p: Number) -> jax.Array:
    w = jnp.asarray(w)
    if not jnp.issubdtype(w.dtype, jnp.floating):
        raise TypeError(f"parameters must be real floating-point arrays, got one of {w.dtype}.")
    wide = jnp.float64 if isinstance(p, float) and p > LARGEST_P_IN_FLOAT32 else jnp.float32
    return jnp.asarray(w, jnp.promote_types(w.dtype, wide))


def _checked(name: str, value: Number, **bounds: float) -> Number:
    """A Python number within its bounds; one that jax holds cannot be looked at."""
    return value if isinstance(value, jax.Array) else number(name, value, **bounds)
