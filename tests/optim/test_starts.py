import pytest
import torch

from mirrormax import MirrorDescent, equivalent_lr, sparse_start
from mirrormax.geometry import Hypentropy, SquaredLp


@pytest.mark.parametrize("p", [1.01, 1.1, 1.5, 2.0, 3.0, 6.0, Hypentropy(0.02), SquaredLp(2.0)], ids=str)
def test_a_small_step_moves_weights_as_sgd_does(p):
    weights, gradient = torch.full((5,), 0.05, dtype=torch.float64), torch.linspace(-1, 1, 5, dtype=torch.float64)
    param = torch.nn.Parameter(weights.clone())
    param.grad = gradient
    MirrorDescent([param], lr=equivalent_lr([param], lr=1e-6, p=p), p=p).step()
    torch.testing.assert_close(param.detach(), weights - 1e-6 * gradient, rtol=0, atol=1e-8)


def test_the_typical_size_is_the_root_mean_square_of_all_entries():
    params = [torch.full((3,), 2.0), torch.full((1,), 4.0)]
    assert equivalent_lr(params, lr=1.0, p=3.0) == pytest.approx(2 * 7**0.5)


def test_weights_without_a_size_are_refused():
    for weights in (torch.zeros(3), torch.empty(0), torch.tensor([1.0, torch.nan])):
        with pytest.raises(ValueError, match="params must be finite and not all zero"):
            equivalent_lr([weights], lr=0.1, p=1.1)


@pytest.mark.parametrize("options", [{"lr": -1.0, "p": 1.1}, {"lr": 0.1, "p": 1.0}])
def test_bad_numbers_are_refused(options):
    with pytest.raises(ValueError, match="must be a finite number"):
        equivalent_lr([torch.ones(3)], **options)


def test_a_share_to_keep_is_asked_for():
    with pytest.raises(TypeError, match=r"needs density.*sparse_start\(model, 0.1\)"):
        sparse_start(torch.nn.Linear(3, 3))


def test_named_parameters_will_do():
    model = torch.nn.Linear(3, 3)
    assert equivalent_lr(model.named_parameters(), 0.1, 1.5) == equivalent_lr(model.parameters(), 0.1, 1.5)
