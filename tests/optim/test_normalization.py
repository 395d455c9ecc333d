import pytest
import torch
from optimizer_table import parameters, set_gradients

from mirrormax import MirrorDescent
from mirrormax.geometry import Hypentropy, as_potential
from mirrormax.optim import reference_dual_norm, reference_step


@pytest.mark.parametrize("p", [1.1, 1.75, 2.0, 3.0])
def test_a_normalised_step_is_the_papers(p):
    params = parameters()
    set_gradients(params, seed=0)
    expected = [
        reference_step(param.detach(), param.grad / (reference_dual_norm(param.grad, p) + 2.2e-16), 0.1, p)
        for param in params
    ]
    MirrorDescent(params, lr=0.1, p=p, normalize="tensor").step()
    for param, w in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), w, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("p", [1.1, 2.0, 3.0, Hypentropy(1.0)], ids=str)
def test_a_tensor_step_moves_the_dual_by_lr_in_the_dual_norm(p):
    potential, params = as_potential(p), parameters()
    before = [potential.mirror_map(param.detach()) for param in params]
    set_gradients(params, seed=0)
    MirrorDescent(params, lr=0.1, p=p, normalize="tensor").step()
    for param, u in zip(params, before, strict=True):
        moved = potential.dual_norm(potential.mirror_map(param.detach()) - u, tuple(range(u.ndim)))
        assert float(moved) == pytest.approx(0.1, rel=1e-9)


def test_the_global_norm_spans_groups_of_one_potential():
    params = parameters()
    before = [param.detach().sign() * param.detach().abs() ** 0.5 for param in params]
    set_gradients(params, seed=0)
    groups = [{"params": params[:2]}, {"params": params[2:]}]
    MirrorDescent(groups, lr=0.1, p=1.5, normalize="global").step()
    after = [param.detach().sign() * param.detach().abs() ** 0.5 for param in params]
    moves = torch.cat([(a - b).flatten() for a, b in zip(after, before, strict=True)])
    assert float((moves.abs() ** 3).sum() ** (1 / 3)) == pytest.approx(0.1, rel=1e-9)


def test_the_global_norm_of_different_potentials_is_the_root_of_their_squares():
    params = parameters()
    set_gradients(params, seed=0)
    first, second = (reference_dual_norm(params[k].grad, p) for k, p in ((0, 1.5), (1, 3.0)))
    expected = reference_step(params[1].detach(), params[1].grad / (first**2 + second**2) ** 0.5, 0.1, 3.0)
    groups = [{"params": [params[0]], "p": 1.5}, {"params": [params[1]], "p": 3.0}]
    MirrorDescent(groups, lr=0.1, normalize="global").step()
    torch.testing.assert_close(params[1].detach(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("normalize", ["tensor", "global"])
def test_the_scale_of_the_gradient_does_not_matter(normalize):
    results = []
    for scale in (1e-30, 1.0, 1e30):
        params = parameters(torch.float64)
        set_gradients(params, seed=0)
        for param in params:
            param.grad *= scale
        MirrorDescent(params, lr=0.1, p=1.75, normalize=normalize).step()
        results.append(params[0].detach())
    torch.testing.assert_close(results[1], results[2], rtol=1e-12, atol=0)
    # The paper's +2.2e-16 in the denominator switches gradients off that are far smaller than it.
    torch.testing.assert_close(results[0], parameters()[0].detach(), rtol=1e-6, atol=0)


def test_a_gradient_of_zero_moves_nothing():
    params = parameters()
    for param in params:
        param.grad = torch.zeros_like(param)
    MirrorDescent(params, lr=0.1, p=2.0, normalize="tensor").step()
    assert all(torch.equal(a, b) for a, b in zip(params, parameters(), strict=True))


@pytest.mark.parametrize("p", [1.1, 1.75, 2.0])
@pytest.mark.parametrize("options", [{}, {"fused": False}, {"capturable": True}], ids=str)
def test_a_running_norm_is_the_documented_formula(p, options):
    """Every third gradient is a hundred times as long, and its step three times η and no longer."""
    params, rho, eta = parameters(), 0.8, 0.01
    optimizer = MirrorDescent(params, lr=eta, p=p, normalize="running", normalize_decay=rho, **options)
    potential = as_potential(p)
    duals = [potential.mirror_map(param.detach()) for param in params]
    averages = [None] * len(params)
    for step in range(6):
        set_gradients(params, seed=step)
        for k, param in enumerate(params):
            param.grad *= 100 if step % 3 == 2 else 1
            norm = reference_dual_norm(param.grad, p)
            averages[k] = norm if averages[k] is None else rho * averages[k] + (1 - rho) * norm
            duals[k] = duals[k] - eta * param.grad / max(averages[k], norm / 3)
        optimizer.step()
    for param, u in zip(params, duals, strict=True):
        torch.testing.assert_close(param.detach(), potential.inverse_map(u), rtol=1e-9, atol=1e-12)


def test_a_running_norm_is_kept_and_survives_what_is_not_finite():
    params = parameters()
    optimizer = MirrorDescent(params, lr=0.01, p=1.5, normalize="running")
    set_gradients(params, seed=0)
    optimizer.step()
    other = MirrorDescent(parameters(), lr=0.01, p=1.5, normalize="running")
    other.load_state_dict(optimizer.state_dict())
    loaded = other.param_groups[0]["params"]
    assert [float(other.state[param]["norm"]) for param in loaded] == [
        float(optimizer.state[param]["norm"]) for param in params
    ]
    for param in params:
        param.grad.fill_(float("nan"))
    before = [float(optimizer.state[param]["norm"]) for param in params]
    optimizer.step()
    assert [float(optimizer.state[param]["norm"]) for param in params] == before
