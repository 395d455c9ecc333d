import math

import numpy as np
import pytest
import torch

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.geometry import Hypentropy, Lp

PARAM = torch.nn.Parameter(torch.ones(2))

REFUSED = [
    ({"p": 1.0}, ValueError, "p must be a finite number greater than 1, got 1.0"),
    ({"p": 0.5}, ValueError, "got 0.5"),
    ({"p": math.nan}, ValueError, "got nan"),
    ({"p": math.inf}, ValueError, "got inf"),
    ({"p": "1.5"}, TypeError, "p must be a number, got '1.5'"),
    ({"p": None}, TypeError, "got None"),
    ({"p": "hypentropy"}, TypeError, "got 'hypentropy'"),
    ({"lr": -0.1}, ValueError, "lr must be a finite number at least 0, got -0.1"),
    ({"lr": math.nan}, ValueError, "lr .* got nan"),
    ({"lr": math.inf}, ValueError, "lr .* got inf"),
    ({"lr": "0.1"}, TypeError, "lr must be a number, got '0.1'"),
    ({"lr": torch.tensor([0.1, 0.2])}, ValueError, r"a tensor lr must hold one .* shape \(2,\)"),
    ({"lr": torch.tensor(-1.0)}, ValueError, "lr .* got -1.0"),
    ({"momentum": -0.1}, ValueError, "momentum must be .* got -0.1"),
    ({"momentum": 1.0}, ValueError, "momentum must be .* less than 1, got 1.0"),
    ({"momentum": math.nan}, ValueError, "momentum .* got nan"),
    ({"weight_decay": -1}, ValueError, "weight_decay .* got -1"),
    ({"nesterov": True}, ValueError, "nesterov=True needs momentum > 0"),
    ({"nesterov": "yes"}, TypeError, "nesterov must be True or False, got 'yes'"),
    ({"normalize": "layer"}, ValueError, "normalize must be None, 'tensor', 'global' or 'running', got 'layer'"),
    ({"maximize": 1}, TypeError, "maximize must be True or False, got 1"),
    ({"foreach": "yes"}, TypeError, "foreach must be .* got 'yes'"),
    ({"normalize_decay": 1.0}, ValueError, "normalize_decay must be"),
    ({"fused": "yes"}, TypeError, "fused must be .* got 'yes'"),
    ({"foreach": True, "fused": True}, ValueError, "choose one"),
    ({"foreach": True, "compile": True}, ValueError, "choose one"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED, ids=str)
def test_bad_hyperparameters_are_refused_by_name_and_value(options, error, message):
    with pytest.raises(error, match=message):
        MirrorDescent([PARAM], **{"lr": 0.1, **options})


@pytest.mark.parametrize(("options", "error", "message"), REFUSED, ids=str)
def test_bad_hyperparameters_of_a_group_are_refused_too(options, error, message):
    optimizer = MirrorDescent([PARAM], lr=0.1)
    with pytest.raises(error, match=message):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))], **options})
    assert len(optimizer.param_groups) == 1


def test_misspelt_options_are_refused_and_foreign_ones_kept():
    with pytest.raises(TypeError, match="unknown option 'momentun'; did you mean 'momentum'"):
        MirrorDescent([{"params": [PARAM], "momentun": 0.9}], lr=0.1)
    optimizer = MirrorDescent([{"params": [PARAM], "layer": 3, "initial_lr": 0.5}], lr=0.1)
    assert optimizer.param_groups[0]["layer"] == 3


def test_groups_that_torch_refuses_are_refused():
    with pytest.raises(TypeError, match="unknown option 'parms'; did you mean 'params'"):
        MirrorDescent([{"parms": [PARAM]}], lr=0.1)
    with pytest.raises(KeyError, match="params"):
        MirrorDescent([{"lr": 0.1}], lr=0.1)
    with pytest.raises(TypeError, match="ordered"):
        MirrorDescent([{"params": {PARAM}}], lr=0.1)
    with pytest.raises(TypeError, match="unknown option 'P'; did you mean 'p'"):
        MirrorDescent([{"params": [PARAM], "P": 1.1}], lr=0.1)


def test_a_bad_p_set_between_steps_is_refused_before_anything_moves():
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizer = MirrorDescent([{"params": [param]} for param in params], lr=0.1, p=1.5)
    for param in params:
        param.grad = torch.ones(1)
    optimizer.param_groups[1]["p"] = 0.5
    with pytest.raises(ValueError, match=r"got 0.5"):
        optimizer.step()
    assert params[0] == 1


def test_a_potential_set_between_steps_is_kept_as_plain_data():
    param = torch.nn.Parameter(torch.ones(1))
    param.grad = torch.ones(1)
    optimizer = MirrorDescent([param], lr=0.1, p=1.5)
    optimizer.param_groups[0]["p"] = Hypentropy(2.0)
    optimizer.step()
    assert optimizer.state_dict()["param_groups"][0]["p"] == {"name": "Hypentropy", "beta": 2.0}


def test_parameters_must_be_real():
    with pytest.raises(TypeError, match=r"must be real floating-point tensors, got one of torch.complex64"):
        MirrorDescent([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))], lr=0.1)


def test_no_parameters_are_refused_as_in_torch():
    with pytest.raises(ValueError, match="empty parameter list"):
        MirrorDescent([], lr=0.1)


def test_p_may_be_a_number_a_potential_or_its_plain_data():
    for p in (Hypentropy(2.0), Hypentropy(2.0).spec()):
        (group,) = MirrorDescent([PARAM], lr=0.1, p=p).param_groups
        assert group["p"] == {"name": "Hypentropy", "beta": 2.0}
    (group,) = MirrorDescent([PARAM], lr=0.1, p=Lp(1.5)).param_groups
    assert group["p"] == 1.5


def test_a_groups_own_p_outranks_that_of_the_optimizer():
    groups = [{"params": [PARAM], "p": 3}, {"params": [torch.nn.Parameter(torch.ones(1))]}]
    first, second = MirrorDescent(groups, lr=0.1, p=Hypentropy(1.0)).param_groups
    assert first["p"] == 3.0
    assert second["p"]["name"] == "Hypentropy"


def test_numpy_numbers_become_plain_ones():
    (group,) = MirrorDescent([PARAM], lr=np.float32(0.5), p=np.float64(1.5), momentum=np.float32(0.5)).param_groups
    assert [type(group[name]) for name in ("lr", "p", "momentum")] == [float] * 3


def test_repr_shows_the_hyperparameters():
    assert "p: 1.1" in repr(MirrorDescent([PARAM], lr=0.1, p=1.1))


@pytest.mark.parametrize("optimizer", [MirrorDescent, MirrorAdamW])
@pytest.mark.parametrize(("params", "shown"), [(None, r"None \(NoneType\)"), (3, r"3 \(int\)"), (PARAM, "Parameter")])
def test_what_holds_no_parameters_is_named(optimizer, params, shown):
    with pytest.raises(TypeError, match=rf"^params must be a list of parameters.* got {shown}"):
        optimizer(params)


def test_a_step_size_that_is_not_given_is_named():
    with pytest.raises(TypeError, match=r"^lr must be given, got None; write a step size"):
        MirrorDescent([PARAM])
