"""Every model class of the installed transformers, tiny: its attention is read exactly, or refused with a sentence.

A class whose own forward does not run at these sizes on a plain batch is skipped. The quick part, a model for each way
of computing attention, is test_architectures.py.
"""

import pytest
import torch
import transformers
from torch import nn
from transformers.models.auto import configuration_auto, modeling_auto

import mirrormax
from mirrormax.auditing import adapter_for, watching

pytestmark = pytest.mark.slow
SIZES = {
    **dict.fromkeys(("vocab_size", "text_vocab_size", "n_words", "vocab_size_per_layer_input"), 40),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "encoder_hidden_size", "width"), 32),
    **dict.fromkeys(("emb_dim", "hidden_size_per_layer_input"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "depth", "num_hidden_groups"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "decoder_num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_group", "num_local_experts", "num_experts"), 2),
    **dict.fromkeys(("n_routed_experts", "moe_num_experts", "topk_group", "first_k_dense_replace"), 2),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size", "qk_nope_head_dim", "qk_rope_head_dim"), 8),
    **dict.fromkeys(("v_head_dim", "q_lora_rank", "kv_lora_rank", "kv_channels", "rotary_dim"), 8),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner"), 48),
    **dict.fromkeys(("moe_intermediate_size", "ffn_hidden_size", "n_inner", "intermediate_size_mlp"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"), 64),
    **dict.fromkeys(("embedding_size", "projection_dim", "sliding_window", "attention_window"), 32),
    "image_size": 32, "patch_size": 8, "pad_token_id": 0, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4, "max_source_positions": 32, "num_mel_bins": 8,
}  # fmt: skip
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "sliding_window")
ALTERED = (
    {},
    {"num_key_value_heads": 4, "num_kv_heads": 4},  # DeepSeek's latent attention
    dict.fromkeys(DEPTHS),  # whose layers are of kinds that are listed one by one
    {"hidden_size": 256, "head_dim": 64},  # rotations in sections of a given size
    {**dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), 4), "n_group": 1},
)
"""What is tried of sizes, one after the other, until a model runs; None leaves a size as it is."""
LARGEST = 30_000_000


def tiny(kind, altered):
    """A configuration with every size that it has made small, those of its parts too."""
    known, sizes = kind().to_dict(), {**SIZES, **altered}
    small = {name: sizes[name] for name, value in known.items() if name in sizes and isinstance(value, int | None)}
    if isinstance(known.get("image_size"), list | tuple):
        small["image_size"] = [SIZES["image_size"]] * 2
    small = {name: size for name, size in small.items() if size is not None}
    for name, part in kind.sub_configs.items():
        if isinstance(known.get(name), dict) and part is not transformers.AutoConfig:
            small[name] = tiny(part, altered).to_dict()
    return kind(**small)


def batch_for(model):
    random = torch.Generator().manual_seed(0)
    name, config = model.main_input_name, model.config
    if name == "pixel_values":
        sizes = getattr(config, "vision_config", config)
        side = sizes.image_size if isinstance(sizes.image_size, int) else sizes.image_size[0]
        return {name: torch.randn(2, getattr(sizes, "num_channels", 3), side, side, generator=random)}
    if name in ("input_values", "input_features"):
        shape = (2, 4000) if name == "input_values" else (2, getattr(config, "num_mel_bins", 8), 64)
        return {name: torch.randn(shape, generator=random)}
    ids = torch.randint(3, 40, (2, 9), generator=random)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def built(name):
    """A model and a batch that it takes, or a skip."""
    reasons = []
    for altered in ALTERED:
        try:
            return of_sizes(name, altered)
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {str(error)[:80]}")
    pytest.skip(f"does not run at these sizes: {reasons[0]}")


def of_sizes(name, altered):
    torch.manual_seed(0)
    config = tiny(getattr(transformers, configuration_auto.CONFIG_MAPPING_NAMES[name]), altered)
    classes = modeling_auto.MODEL_MAPPING_NAMES[name]
    maker = getattr(transformers, classes if isinstance(classes, str) else classes[0])
    with torch.device("meta"):
        size = sum(part.numel() for part in maker(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters")
    model = maker(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    batch = batch_for(model)
    with torch.no_grad():
        (model.get_encoder() if model.config.is_encoder_decoder else model)(**batch)
    return model, batch


@pytest.mark.parametrize("name", sorted(modeling_auto.MODEL_MAPPING_NAMES))
def test_a_class_is_read_exactly_or_refused_with_a_sentence(name):
    model, batch = built(name)
    try:
        mirrormax.audit(model, [batch], samples=2, rivals=2, controls=0, shuffled=0, intervention_texts=0)
    except ValueError as error:
        told = str(error)
        assert told.endswith("."), told
        assert "\n" not in told
        assert len(told) > 40
        return
    torch.manual_seed(1)  # masked autoencoders draw what they see
    with watching(adapter_for(model)) as watch:
        views = watch.run(batch)
    reader = model.get_encoder() if model.config.is_encoder_decoder else model
    for part in reader.modules():
        if hasattr(part, "config"):
            part.config._attn_implementation = "eager"
    try:
        torch.manual_seed(1)
        with torch.no_grad():
            own = reader(**batch, output_attentions=True).attentions
    except Exception:
        own = None  # not all of them answer with maps; outputs were compared by the audit itself
    own = [one for one in own or () if isinstance(one, torch.Tensor) and one.ndim == 4]
    if len(own) == len(views) and all(a.shape[:3] == v.attention().shape[:3] for a, v in zip(own, views, strict=True)):
        for view, attention in zip(views, own, strict=True):
            again, attention = view.attention()[..., : attention.shape[-1]], attention.double()
            if view.sink:  # some leave it out before the softmax, some after it
                again, attention = (part / part.sum(-1, keepdim=True) for part in (again, attention))
            rows = view.mask.any(-1)[:, None].expand(again.shape[:3])
            torch.testing.assert_close(again[rows], attention[rows], atol=5e-5, rtol=0)
