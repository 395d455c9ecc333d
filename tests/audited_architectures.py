"""Tiny models of every architecture of transformers that the audit reads, with random weights."""

import torch
import transformers
from torch import nn

LLAMA = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
BERT = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 32, "pad_token_id": 0,
}  # fmt: skip
ROPE = {"rope_theta": 10000.0}
YARN = ROPE | {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
LLAMA3 = ROPE | {
    "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
PARTIAL = ROPE | {"partial_rotary_factor": 0.5, "rope_type": "default"}
LINEAR, DYNAMIC = ({"rope_type": kind, "factor": 2.0} | ROPE for kind in ("linear", "dynamic"))
BART = {
    "vocab_size": 40, "d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32,
    "pad_token_id": 0,
}  # fmt: skip
WHISPER = BART | {"max_source_positions": 9, "num_mel_bins": 5, "max_target_positions": 9}
del WHISPER["max_position_embeddings"]
CLIP = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}

MAKES = {
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}),
    "gpt2-inverse": (
        "GPT2LMHeadModel",
        {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32,
         "scale_attn_by_inverse_layer_idx": True},
    ),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama-bias": ("LlamaForCausalLM", LLAMA | {"attention_bias": True, "rope_parameters": LLAMA3}),
    "llama-yarn": ("LlamaForCausalLM", LLAMA | {"rope_parameters": YARN}),
    "llama-linear": ("LlamaForCausalLM", LLAMA | {"rope_parameters": LINEAR}),
    "llama-dynamic": ("LlamaForCausalLM", LLAMA | {"rope_parameters": DYNAMIC}),
    "mistral": ("MistralForCausalLM", LLAMA | {"sliding_window": 4}),
    "mixtral": ("MixtralForCausalLM", LLAMA | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 8}),
    "gemma2": ("Gemma2ForCausalLM", LLAMA | {"head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3ForCausalLM", LLAMA | {"head_dim": 8, "sliding_window": 4}),
    "neox": ("GPTNeoXForCausalLM", BERT | {"rope_parameters": PARTIAL}),
    "phi": ("PhiForCausalLM", LLAMA | {"hidden_size": 32}),
    "phi-norm": ("PhiForCausalLM", LLAMA | {"hidden_size": 32, "qk_layernorm": True}),
    "phi3": ("Phi3ForCausalLM", LLAMA),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "cohere": ("CohereForCausalLM", LLAMA),
    "bloom": ("BloomForCausalLM", {"vocab_size": 40, "hidden_size": 16, "n_layer": 2, "n_head": 4, "pad_token_id": 0}),
    "gpt-oss": (
        "GptOssForCausalLM",
        LLAMA | {"head_dim": 8, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1,
                 "rope_parameters": YARN},
    ),
    "bert": ("BertForSequenceClassification", BERT),
    "albert": ("AlbertModel", BERT | {"embedding_size": 8}),
    "deberta-v2": (
        "DebertaV2Model",
        BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 4,
                "max_relative_positions": 8},
    ),
    "deberta-shared": (
        "DebertaV2Model",
        BERT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": True},
    ),
    "mpnet": ("MPNetModel", BERT | {"max_position_embeddings": 34, "pad_token_id": 1}),
    "modernbert": ("ModernBertModel", BERT | {"num_hidden_layers": 4, "local_attention": 4, "cls_token_id": 1,
                                              "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}),
    "t5": ("T5EncoderModel", {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}),
    "t5-whole": ("T5Model", {"vocab_size": 40, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}),
    "clip-text": ("CLIPTextModel", CLIP | {"vocab_size": 40, "max_position_embeddings": 32}),
    "clip-vision": ("CLIPVisionModel", CLIP | {"image_size": 12, "patch_size": 4, "num_channels": 1}),
    "bart": ("BartModel", BART),
    "whisper": ("WhisperModel", WHISPER),
}  # fmt: skip


def make(name, seed=0):
    """A tiny model with random weights of every kind, norms and biases too."""
    kind, sizes = MAKES[name]
    maker = getattr(transformers, kind)
    torch.manual_seed(seed)
    model = maker(maker.config_class(**sizes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


def batch_of(name):
    random = torch.Generator().manual_seed(1)
    if name == "clip-vision":
        return {"pixel_values": torch.randn(3, 1, 12, 12, generator=random)}
    if name == "whisper":
        return {"input_features": torch.randn(2, 5, 18, generator=random)}
    ids = torch.randint(3, 40, (3, 9), generator=random)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}
