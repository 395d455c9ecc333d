"""What the docstrings and docs/math/norms.md say of the limit of each rule, on one problem each."""

import torch
from torch import nn

import mirrormax as mm
from mirrormax.attention import leads, risk, selected_tokens
from mirrormax.geometry import lp_norm
from mirrormax.optim.target import thresholded
from mirrormax.svm import Norm

P = 1.5


def trained(problem, moments, steps=1500):
    """W of one-layer attention from zero, by steps that nothing but the moments shortens."""
    W = nn.Parameter(torch.zeros(problem.X.shape[-1], problem.X.shape[-1], dtype=torch.float64))
    options = {"betas": (0.9, 0.9), "eps": 0.0, "weight_decay": 0.0, "scale": None, "trust": None, "clip": None}
    optimizer = mm.MirrorAdamW([W], lr=0.02, p=P, moments=moments, fused=False, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        risk(problem.X, problem.y, problem.z, problem.v, W).backward()
        optimizer.step()
    return W.detach()


def shortfall(problem, W, p):
    """1 − (smallest lead of W/‖W‖_p)/(largest margin), which is zero at the SVM's solutions alone."""
    alpha = selected_tokens(problem.X, problem.z, W)
    lead = leads(problem.X, problem.z, W=W, alpha=alpha).min() / lp_norm(W, p)
    return 1 - float(lead) / float(mm.att_svm(problem.X, problem.z, alpha, p=p).margin)


def test_one_moment_for_a_tensor_leads_to_the_svm_in_lp_and_one_for_each_entry_leads_elsewhere():
    drawn = mm.data.sphere_problem(1, 3, 4, 5)
    problem = mm.Problem(**{name: torch.as_tensor(getattr(drawn, name)) for name in ("X", "y", "z", "v")})
    by_tensor, by_entry = (trained(problem, moments) for moments in ("tensor", "entry"))
    own = shortfall(problem, by_tensor, P)
    assert own < 0.08
    assert own < min(shortfall(problem, by_tensor, p) for p in (1.1, 3.0))
    assert shortfall(problem, by_entry, P) > 0.2


def test_a_hard_threshold_is_mirror_descent_with_half_the_square_of_the_k_support_norm():
    """w is the gradient of ψ*(u) = ½ Σ of the k largest u², and ψ*(u) + ½‖w‖² = ⟨u, w⟩ in the k-support norm."""
    generator, k = torch.Generator().manual_seed(0), 5
    u = torch.randn(4, 6, dtype=torch.float64, generator=generator).requires_grad_()
    largest = u.abs().flatten().topk(k).values
    dual = largest.square().sum() / 2
    (w,) = torch.autograd.grad(dual, u)
    assert torch.equal(w, torch.where(u.abs() >= largest[-1], u, 0.0))
    size = float(Norm("k-support", (4, 6), k).sizes(w.numpy()[None])[0])
    assert abs(float(dual.detach()) + size**2 / 2 - float((u.detach() * w).sum())) < 1e-9


def test_a_firm_threshold_at_a_quantile_is_the_gradient_of_no_function():
    """The derivatives of a gradient are a symmetric matrix; these are not, as every weight sees λ, and λ one entry."""
    u = torch.linspace(0.1, 1, 10, dtype=torch.float64)
    jacobian = torch.func.jacrev(lambda u: thresholded(u, u.abs().kthvalue(4).values))(u)
    assert float((jacobian - jacobian.T).abs().max()) > 0.5
