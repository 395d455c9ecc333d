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
GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32, "bos_token_id": 1,
        "eos_token_id": 2}  # fmt: skip
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
    "v_head_dim": 6, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "head_dim": 4,
}  # fmt: skip
CLIP = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}

MAKES = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-inverse": ("GPT2LMHeadModel", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
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
    "cohere-norm": ("CohereForCausalLM", LLAMA | {"use_qk_norm": True}),
    "stablelm-norm": ("StableLmForCausalLM", LLAMA | {"hidden_size": 32, "qk_layernorm": True}),
    "glm4": ("Glm4ForCausalLM", LLAMA | {"head_dim": 8, "rope_parameters": PARTIAL}),
    "llama4": ("Llama4ForCausalLM", LLAMA | {"intermediate_size_mlp": 24, "head_dim": 8, "num_hidden_layers": 4,
                                             "num_local_experts": 2, "attention_chunk_size": 8}),
    "hunyuan": ("HunYuanDenseV1ForCausalLM", LLAMA | {"head_dim": 8}),
    "qwen3-next": ("Qwen3NextForCausalLM", LLAMA | {
        "head_dim": 8, "num_hidden_layers": 4, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 4, "linear_value_head_dim": 4}),
    "deepseek-v2": ("DeepseekV2ForCausalLM", LLAMA | MLA),
    "deepseek-v3": ("DeepseekV3ForCausalLM", LLAMA | MLA | {"n_group": 1, "topk_group": 1}),
    "gpt-neo": ("GPTNeoForCausalLM", {"vocab_size": 40, "hidden_size": 16, "num_layers": 2, "num_heads": 4,
                                      "attention_types": [[["global", "local"], 1]], "window_size": 4,
                                      "intermediate_size": 24, "max_position_embeddings": 32}),
    "gptj": ("GPTJForCausalLM", GPT2 | {"rotary_dim": 2}),
    "codegen": ("CodeGenForCausalLM", GPT2 | {"rotary_dim": 2}),
    "falcon": ("FalconForCausalLM", BERT | {"multi_query": True}),
    "falcon-grouped": ("FalconForCausalLM", BERT | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-alibi": ("FalconForCausalLM", BERT | {"alibi": True, "multi_query": False}),
    "mpt": ("MptForCausalLM", {"vocab_size": 40, "d_model": 16, "n_heads": 4, "n_layers": 2, "max_seq_len": 32}),
    "xglm": ("XGLMForCausalLM", {"vocab_size": 40, "d_model": 16, "ffn_dim": 24, "num_layers": 2,
                                 "attention_heads": 4, "max_position_embeddings": 32, "pad_token_id": 0}),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT2),
    "gpt2-upcast": ("GPT2LMHeadModel", GPT2 | {"reorder_and_upcast_attn": True}),
    "bert": ("BertForSequenceClassification", BERT),
    "albert-groups": ("AlbertModel", BERT | {"embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2,
                                             "inner_group_num": 2}),
    "deberta": ("DebertaModel", BERT | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"],
                                        "max_relative_positions": 6, "type_vocab_size": 0}),
    "roformer": ("RoFormerModel", BERT | {"embedding_size": 16}),
    "big-bird": ("BigBirdModel", BERT | {"attention_type": "original_full"}),
    "megatron-bert": ("MegatronBertModel", BERT),
    "dinov3": ("DINOv3ViTModel", CLIP | {"image_size": 12, "patch_size": 4, "num_channels": 1,
                                         "num_register_tokens": 2}),
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
    if name in ("clip-vision", "dinov3"):
        return {"pixel_values": torch.randn(3, 1, 12, 12, generator=random)}
    if name == "whisper":
        return {"input_features": torch.randn(2, 5, 18, generator=random)}
    ids = torch.randint(3, 40, (3, 9), generator=random)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}
