import mpmath
import pytest
import torch

from mirrormax.geometry import signed_power

# Whole, half and quarter exponents take the fast paths, the others the logarithm.
EXPONENTS = [
    0.25,
    0.5,
    0.75,
    1.0,
    1.25,
    1.5,
    1.75,
    2,
    3,
    4,
    5,
    9,
    10,
    20,
    99,
    100,
    2.5,
    7.25,
    1 / 3,
    4 / 3,
    0.02,
    51.3,
    300,
]


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_agrees_with_arbitrary_precision(exponent):
    x = torch.tensor([0.3, -0.3, 1.7, -1.7, 0.9999, -1.0, 1.0], dtype=torch.float64)
    expected = [float(mpmath.sign(v) * abs(mpmath.mpf(v)) ** mpmath.mpf(exponent)) for v in x.tolist()]
    torch.testing.assert_close(
        signed_power(x, exponent), torch.tensor(expected, dtype=torch.float64), rtol=3e-13, atol=0
    )


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_special_values_stay_special(exponent):
    x = torch.tensor([0.0, torch.inf, -torch.inf, torch.nan])
    torch.testing.assert_close(signed_power(x, exponent), x, equal_nan=True)


def test_a_tensor_of_exponents_broadcasts():
    x = torch.tensor([[-2.0], [3.0]])
    torch.testing.assert_close(signed_power(x, torch.tensor([1.0, 2.0])), torch.tensor([[-2.0, -4.0], [3.0, 9.0]]))


def test_the_argument_is_left_alone():
    x = torch.tensor([-2.0, 3.0])
    signed_power(x, 1.0).zero_()
    assert x.tolist() == [-2.0, 3.0]
