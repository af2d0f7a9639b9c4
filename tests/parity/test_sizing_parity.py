"""Parameters counted from config.json against the tensors that transformers builds from the same config, without allocating them."""

import pytest
import torch
from pagoda_sizing.families import parse_model
from pagoda_sizing.published import published, published_model
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText

pytestmark = pytest.mark.parity

ENTRIES = published()
AUTO = {"bert": AutoModel, "roberta": AutoModel, "gemma3": AutoModelForImageTextToText}


def built(config):
    """Parameters of transformers' model, tied ones once."""
    with torch.device("meta"):
        model = AUTO.get(config["model_type"], AutoModelForCausalLM).from_config(AutoConfig.for_model(**config))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_published_models_have_as_many_parameters_as_transformers_builds(entry):
    corrections = 58 * 256 if entry.config["model_type"] == "deepseek_v3" else 0  # buffers there, parameters in the checkpoint
    config = {key: value for key, value in entry.config.items() if key != "quantization_config"}
    assert parse_model(entry.config).parameters.total == built(config) + corrections


SMALL = {
    "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip
MOE = {**SMALL, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK = {**published_model("deepseek-ai/DeepSeek-V3").config, **SMALL, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4, "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
            "moe_intermediate_size": 20, "first_k_dense_replace": 2, "num_key_value_heads": 4, "quantization_config": None}  # fmt: skip
VARIANTS = {
    "attention biases": {**SMALL, "model_type": "llama", "attention_bias": True},
    "mlp biases": {**SMALL, "model_type": "llama", "mlp_bias": True},
    "tied head": {**SMALL, "model_type": "llama", "tie_word_embeddings": True},
    "no num_key_value_heads": {**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, "model_type": "llama"},
    "head_dim of its own": {**SMALL, "model_type": "mistral", "head_dim": 40},
    "qwen3 with biases": {**SMALL, "model_type": "qwen3", "attention_bias": True},
    "every other layer dense": {**MOE, "model_type": "qwen3_moe", "head_dim": 16, "decoder_sparse_step": 2, "mlp_only_layers": []},
    "named layers dense": {**MOE, "model_type": "qwen3_moe", "head_dim": 16, "decoder_sparse_step": 1, "mlp_only_layers": [0, 3]},
    "untied gemma": {**SMALL, "model_type": "gemma2", "head_dim": 16, "tie_word_embeddings": False},
    "gemma 3 with biases": {**SMALL, "model_type": "gemma3_text", "head_dim": 16, "attention_bias": True},
    "roberta": {**SMALL, "model_type": "roberta", "type_vocab_size": 1},
    "gpt2 with n_inner": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "n_inner": 96, "vocab_size": 9},
    "gemma 3 with a pooling head": {
        "model_type": "gemma3",
        "text_config": {**SMALL, "model_type": "gemma3_text", "head_dim": 16},
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 32, "image_size": 28, "intermediate_size": 40,
                          "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 14},
        "mm_tokens_per_image": 4,
    },
    "mla without a query latent": {**DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None, "topk_method": "greedy"},
    "mla with biases": {**DEEPSEEK, "model_type": "deepseek_v2", "attention_bias": True, "topk_method": "greedy"},
}  # fmt: skip


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_options_of_a_family_are_counted_as_transformers_builds_them(config):
    assert parse_model(config).parameters.total == built(config)


WINDOWED = ["google/gemma-2-9b", "google/gemma-3-1b-it"]


@pytest.mark.parametrize("name", WINDOWED)
def test_the_same_layers_have_a_window_as_in_transformers(name):
    config = published_model(name).config
    kinds = ["full_attention" if window is None else "sliding_attention" for window in parse_model(config).windows]
    assert kinds == AutoConfig.for_model(**config).layer_types


def test_qwen2_windows_start_at_max_window_layers():
    config = {**SMALL, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3}
    kinds = ["full_attention" if window is None else "sliding_attention" for window in parse_model(config).windows]
    assert kinds == AutoConfig.for_model(**config).layer_types
