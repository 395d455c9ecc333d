import pytest
import torch
from torch import nn

from mirrormax import MirrorDescent, param_groups


def names(groups):
    return {group["name"]: group["param_names"] for group in groups}


class BertStyle(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.output = nn.Linear(4, 4)


def renamed(*attributes, layer=lambda: nn.Linear(4, 4, bias=False)):
    model = nn.Module()
    for attribute in (*attributes, "dense"):
        setattr(model, attribute, layer())
    return model


class Conv1D(nn.Module):
    """GPT-2's linear layer: no nn.Linear, weight transposed."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 12))


def test_multihead_attention_gives_its_packed_projection():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2, enable_nested_tensor=False)
    groups = names(param_groups(model))
    assert groups["attention"] == [f"layers.{k}.self_attn.in_proj_weight" for k in range(2)]


def test_multihead_attention_with_separate_projections():
    groups = names(param_groups(nn.MultiheadAttention(8, 2, kdim=4, vdim=4)))
    assert groups["attention"] == ["q_proj_weight", "k_proj_weight", "v_proj_weight"]


def test_bert_style_names_and_biases_as_rest():
    groups = names(param_groups(nn.Sequential(BertStyle())))
    assert groups["attention"] == ["0.query.weight", "0.key.weight", "0.value.weight"]
    assert "0.query.bias" in groups["rest"]


@pytest.mark.parametrize(
    "attributes",
    [
        ("q_proj", "k_proj", "v_proj"),
        ("q_lin", "k_lin", "v_lin"),
        ("to_q", "to_k", "to_v"),
        ("wq", "wk", "wv"),
        ("Wq", "Wk", "Wv"),
        ("q", "kv"),
        ("q_proj", "kv_proj"),
        ("W_Q", "W_K", "W_V"),
        ("q", "k", "v"),
        ("qkv",),
        ("to_qkv",),
        ("query_key_value",),
        ("Wqkv",),
    ],
)
def test_names_that_other_libraries_use(attributes):
    groups = names(param_groups(renamed(*attributes)))
    assert groups["attention"] == [f"{name}.weight" for name in attributes]
    assert groups["rest"] == ["dense.weight"]


def test_packed_projections_need_not_be_linear_layers():
    assert names(param_groups(renamed("c_attn", layer=Conv1D)))["attention"] == ["c_attn.weight"]


class Critic(nn.Module):
    """Names that attention uses too: a value head, an embedding of keys, a mixer's input projection."""

    def __init__(self):
        super().__init__()
        self.value, self.key, self.in_proj = nn.Linear(4, 1), nn.Embedding(3, 4), nn.Linear(4, 8)


class CrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.value = nn.Linear(4, 8, bias=False), nn.Linear(4, 4, bias=False)


def test_layers_that_only_share_a_name_with_attention_are_rest():
    groups = names(param_groups(nn.ModuleDict({"critic": Critic(), "mix": CrossAttention()})))
    assert groups["attention"] == ["mix.in_proj.weight", "mix.value.weight"]


def test_adapters_and_reparametrisations_go_with_their_projection():
    model = BertStyle()
    model.query = nn.ModuleDict({"base_layer": nn.Linear(4, 4), "lora_A": nn.Linear(4, 2, bias=False)})
    nn.utils.parametrizations.weight_norm(model.key)
    attention = names(param_groups(model))["attention"]
    assert {"query.base_layer.weight", "query.lora_A.weight", "value.weight"} <= set(attention)
    assert "key.parametrizations.weight.original1" in attention


def test_no_parameter_is_lost_and_none_comes_twice():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    model.tied = model.encoder.layers[0].self_attn
    model.encoder.layers[0].linear1.weight.requires_grad_(False)
    params = [param for group in param_groups(model) for param in group["params"]]
    assert len(params) == len({id(p) for p in params})
    assert {id(p) for p in params} == {id(p) for p in model.parameters()}


def test_include_and_exclude_patterns():
    model = nn.Sequential(BertStyle(), BertStyle())
    groups = names(param_groups(model, include=["*.output.weight"], exclude=["1.*"]))
    assert groups["attention"] == [f"0.{name}.weight" for name in ("query", "key", "value", "output")]


def test_options_reach_the_optimizer():
    model = nn.Sequential(BertStyle())
    groups = param_groups(model, attention={"p": 1.1, "lr": 1e-3}, rest={"p": 2.0, "lr": 1e-2})
    first, second = MirrorDescent(groups, lr=1.0).param_groups
    assert (first["name"], first["p"], first["lr"]) == ("attention", 1.1, 1e-3)
    assert (second["name"], second["p"], second["lr"]) == ("rest", 2.0, 1e-2)


@pytest.mark.parametrize("optimizer", [MirrorDescent, torch.optim.AdamW])
def test_names_stay_with_their_parameters_in_any_optimizer(optimizer):
    model = nn.Sequential(BertStyle())
    groups = optimizer(param_groups(model), lr=1.0).param_groups
    for group in groups:
        for name, param in zip(group["param_names"], group["params"], strict=True):
            assert model.get_parameter(name) is param


def test_repr_says_what_went_where():
    text = repr(param_groups(BertStyle(), attention={"p": 1.1}))
    assert "attention(p=1.1): 3 tensors, 48 numbers" in text
    assert "rest(): 5 tensors, 32 numbers" in text
    assert "    query.weight (4, 4)" in text


def test_a_model_without_attention_is_refused():
    with pytest.raises(ValueError, match="no attention weights were found in Linear; name them with include="):
        param_groups(nn.Linear(2, 2))


def test_excluding_all_attention_is_refused():
    with pytest.raises(ValueError, match="no attention weights are left after exclude in BertStyle"):
        param_groups(BertStyle(), exclude=["*"])


def test_options_that_are_no_dict_are_refused():
    with pytest.raises(TypeError, match=r"attention must be a dict of options, got 'p=1.1'"):
        param_groups(BertStyle(), attention="p=1.1")


def test_attention_alone_makes_one_group():
    assert [group["name"] for group in param_groups(nn.Linear(2, 2), include=["*"])] == ["attention"]


def test_patterns_that_match_nothing_are_refused():
    with pytest.raises(ValueError, match=r"the include pattern '\*.kweri' matches no parameter"):
        param_groups(BertStyle(), include=["*.kweri"])
    with pytest.raises(TypeError, match=r"exclude must be a list of patterns, got the string 'query'"):
        param_groups(BertStyle(), exclude="query")


def test_parameters_instead_of_a_model_are_refused():
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got generator"):
        param_groups(nn.Linear(2, 2).parameters())


def test_a_matrix_beside_known_projections_that_has_no_known_name_is_told():
    model = renamed("q_proj", "k_proj", "v_proj", "gate")
    with pytest.warns(UserWarning, match=r"gate\.weight stands beside queries and keys but has no known name"):
        groups = param_groups(model)
    assert "gate.weight" in names(groups)["rest"]
    assert "gate.weight" in names(param_groups(model, include=["gate.weight"]))["attention"]
    assert "gate.weight" in names(param_groups(model, exclude=["gate.weight"]))["rest"]


@pytest.mark.parametrize(
    "attributes",
    [
        ("c_attn", "q_attn"),
        ("query_key", "value"),
        ("query", "key", "value", "query_global", "key_global", "value_global"),
        ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
        ("query_proj", "key_proj", "value_proj", "pos_key_proj", "pos_query_proj"),
    ],
    ids=["GPT-2", "Reformer", "Longformer", "DeepSeek", "DeBERTa"],
)
def test_every_projection_of_libraries_with_several_is_attention(attributes):
    assert names(param_groups(renamed(*attributes)))["attention"] == [f"{name}.weight" for name in attributes]
