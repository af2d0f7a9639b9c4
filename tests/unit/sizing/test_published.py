"""Parameters against the counts that authors publish, and KV caches against each model's own description."""

import pytest
from pagoda_sizing.families import FAMILIES, OTHERS, parse_model
from pagoda_sizing.published import published, published_model

ENTRIES = published()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_parameters_are_exactly_the_published_count(entry):
    assert parse_model(entry.config).parameters.total == entry.parameters


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_every_entry_names_where_config_and_count_were_read(entry):
    assert "https://" in entry.config_source
    assert "https://" in entry.count_source


def test_at_least_fifteen_models_and_every_family_stand_in_the_table():
    kinds = {entry.config["model_type"] for entry in ENTRIES}
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES) >= 15
    assert {*FAMILIES, "gemma3", "deepseek_v2", "deepseek_v3", "gpt2", "bert"} <= kinds
    assert kinds - {*FAMILIES, *OTHERS} == {"gemma3"}


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("google/gemma-2b", 18 * 2 * 1 * 256 * 2),  # multi-query: one KV head
        ("deepseek-ai/DeepSeek-V3", 61 * (512 + 64) * 2),  # latent and rotary key, not heads
        ("deepseek-ai/DeepSeek-V2-Lite", 27 * 576 * 2),
        ("Qwen/Qwen3-30B-A3B", 48 * 2 * 4 * 128 * 2),  # head_dim 128 although 2048 / 32 is 64
        ("openai-community/gpt2", 12 * 2 * 768 * 2),
        ("google-bert/bert-base-uncased", 0),
    ],
)
def test_kv_bytes_per_token(name, per_token):
    assert parse_model(published_model(name).config).kv_bytes_per_token() == per_token


@pytest.mark.parametrize(
    ("name", "context", "tokens"),
    [
        ("mistralai/Mistral-7B-v0.1", 32_768, 32 * 4096),  # all layers in the window
        ("mistralai/Mistral-7B-Instruct-v0.3", 32_768, 32 * 32_768),  # no window
        ("google/gemma-2-9b", 8192, 21 * 4096 + 21 * 8192),  # every other layer
        ("google/gemma-3-1b-it", 32_768, 22 * 512 + 4 * 32_768),  # five local, one global
        ("microsoft/Phi-3-mini-4k-instruct", 4096, 32 * 2047),
        ("Qwen/Qwen2-7B-Instruct", 32_768, 28 * 32_768),  # has a window, and use_sliding_window is off
    ],
)
def test_layers_with_a_window_hold_no_more_than_it(name, context, tokens):
    model = parse_model(published_model(name).config)
    assert model.kv_bytes(context) == tokens * model.attention.cached_elements * 2


def test_fp8_weights_of_deepseek_v3_are_close_to_its_checkpoint():
    model = parse_model(published_model("deepseek-ai/DeepSeek-V3").config)
    # 671 GB of fp8, plus embedding and head (1.85 B parameters) at two bytes.
    assert model.weight_bytes("fp8") == pytest.approx(671.03e9 + 1.87e9, rel=1e-3)


def test_weights_of_llama_3_70b_in_int4_keep_embedding_and_head_in_bf16():
    model = parse_model(published_model("meta-llama/Meta-Llama-3-70B").config)
    matrices = model.parameters.dense
    assert model.weight_bytes("int4") == matrices * 17 // 32 + 2 * (model.parameters.total - matrices)


def test_gemma_starts_with_a_local_layer():
    assert parse_model(published_model("google/gemma-2-9b").config).windows[:3] == (4096, None, 4096)
    assert parse_model(published_model("google/gemma-3-1b-it").config).windows[:7] == (512, 512, 512, 512, 512, None, 512)
