"""config.json: what is read, and what is refused by name."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model.config import Experts, parse_spec, read_spec
from pagoda_daemon.model.rope import rope_table
from pagoda_daemon.model.scaling import LinearScaling, Llama3Scaling, YarnScaling
from pagoda_daemon.model.weights import weight_bytes

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 128}


def raw(**changes: Any) -> dict[str, Any]:
    base = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "max_position_embeddings": 256,
    }
    return {key: value for key, value in (base | changes).items() if value is not ...}


def test_defaults_are_those_of_llama() -> None:
    spec = parse_spec(raw())
    assert (spec.kv_heads, spec.head_dim, spec.rope_theta, spec.rope_scaling) == (4, 16, 10_000.0, None)
    assert (spec.tied, spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm) == (False,) * 5
    assert (spec.windows, spec.sparse, spec.experts, spec.sliding_window) == ((None, None), (False, False), None, None)


def test_a_head_may_be_wider_than_its_share_of_the_hidden_size() -> None:
    assert parse_spec(raw(head_dim=32)).head_dim == 32


@pytest.mark.parametrize(
    "written",
    [
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": {**{k: v for k, v in LLAMA3.items() if k != "rope_type"}, "type": "llama3"}},
    ],
)
def test_llama3_scaling_is_read_as_transformers_4_and_5_write_it(written: dict[str, Any]) -> None:
    spec = parse_spec(raw(**written))
    assert (spec.rope_theta, spec.rope_scaling) == (5e5, Llama3Scaling(8.0, 1.0, 4.0, 128))


def test_the_other_scalings_are_read() -> None:
    assert parse_spec(raw(rope_scaling={"type": "linear", "factor": 2})).rope_scaling == LinearScaling(2.0)
    yarn = parse_spec(raw(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}))
    assert yarn.rope_scaling == YarnScaling(4.0, 32.0, 1.0, 0.1 * math.log(4) + 1, 128, truncate=True)
    assert yarn.max_positions == 512
    inferred = parse_spec(raw(rope_parameters={"rope_type": "yarn", "original_max_position_embeddings": 64, "attention_factor": 1.5}))
    assert inferred.rope_scaling == YarnScaling(4.0, 32.0, 1.0, 1.5, 64, truncate=True)


def test_dynamic_scaling_is_served_to_where_it_changes_nothing() -> None:
    spec = parse_spec(raw(rope_scaling={"type": "dynamic", "factor": 4.0}))
    assert (spec.rope_scaling, spec.max_positions) == (None, 256)


def test_scaling_of_transformers_4_wins_over_that_of_5() -> None:
    spec = parse_spec(raw(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 3.0}))
    assert spec.rope_scaling == LinearScaling(2.0)


def family(architecture: str, model_type: str, **changes: Any) -> dict[str, Any]:
    return raw(architectures=[architecture], model_type=model_type, num_key_value_heads=2, **changes)


MISTRAL = ("MistralForCausalLM", "mistral")
QWEN2 = ("Qwen2ForCausalLM", "qwen2")
QWEN3 = ("Qwen3ForCausalLM", "qwen3")
QWEN3_MOE = ("Qwen3MoeForCausalLM", "qwen3_moe")
MIXTRAL = ("MixtralForCausalLM", "mixtral")
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}


@pytest.mark.parametrize(
    ("written", "windows"),
    [
        (family(*MISTRAL, sliding_window=32), (32, 32)),
        (family(*MISTRAL, sliding_window=None), (None, None)),
        (family(*MISTRAL, max_position_embeddings=8192), (4096, 4096)),
        (family(*MISTRAL, sliding_window=256), (None, None)),
        (family(*MISTRAL, sliding_window=32, layer_types=["full_attention", "sliding_attention"]), (None, 32)),
        (family(*MIXTRAL, num_local_experts=8, num_experts_per_tok=2, sliding_window=32), (32, 32)),
        (family(*QWEN2, sliding_window=32), (None, None)),
        (family(*QWEN2, sliding_window=32, use_sliding_window=True, max_window_layers=1), (None, 32)),
        (family(*QWEN2, sliding_window=32, use_sliding_window=True), (None, None)),
        (family(*QWEN3, sliding_window=32, use_sliding_window=True, layer_types=["sliding_attention", "full_attention"]), (32, None)),
        (family(*QWEN3_MOE, **MOE, sliding_window=32, use_sliding_window=True, max_window_layers=2), (32, 32)),
        (family("LlamaForCausalLM", "llama", sliding_window=32), (None, None)),
    ],
)
def test_windows_are_those_of_the_family(written: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    spec = parse_spec(written)
    assert spec.windows == windows
    assert spec.sliding_window == (None if None in windows else windows[0])


def test_a_window_that_the_context_never_outgrows_is_none() -> None:
    spec = parse_spec(family(*MISTRAL, sliding_window=32))
    assert (spec.within(33).sliding_window, spec.within(32).sliding_window) == (32, None)


def test_families_differ_in_biases_and_norms() -> None:
    def facts(*kind: str, **changes: Any) -> tuple[bool, ...]:
        spec = parse_spec(family(*kind, attention_bias=True, mlp_bias=True, **changes))
        return spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.qk_norm

    assert facts("LlamaForCausalLM", "llama") == (True, True, True, False)
    assert facts(*QWEN2) == (True, False, False, False)
    assert facts(*QWEN3) == facts(*QWEN3_MOE, **MOE) == (True, True, False, True)
    assert facts(*MISTRAL) == facts(*MIXTRAL, num_local_experts=8, num_experts_per_tok=2) == (False, False, False, False)
    assert parse_spec(family(*QWEN2)).qkv_bias


def test_head_size_where_config_json_is_silent() -> None:
    assert (parse_spec(family(*QWEN3)).head_dim, parse_spec(family(*QWEN2)).head_dim) == (128, 16)


def test_experts_are_read() -> None:
    qwen = parse_spec(family(*QWEN3_MOE, **MOE, norm_topk_prob=True, num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[1]))
    assert isinstance(qwen.experts, Experts)
    assert (qwen.experts.count, qwen.experts.per_token, qwen.experts.intermediate, qwen.experts.normalised) == (8, 2, 16, True)
    assert qwen.sparse == (False, False, False, True, False)
    plain = parse_spec(family(*QWEN3_MOE, **MOE | {"num_experts": ..., "num_local_experts": 4}))
    assert plain.experts is not None
    assert (plain.experts.count, plain.experts.normalised, plain.sparse) == (4, False, (True, True))
    mixtral = parse_spec(family(*MIXTRAL, num_local_experts=4, num_experts_per_tok=2))
    assert mixtral.experts is not None
    assert (mixtral.experts.intermediate, mixtral.experts.normalised, mixtral.rope_theta, mixtral.norm_eps) == (128, True, 1e6, 1e-5)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ("GPT2LMHeadModel", "LlamaForCausalLM")),
        ({"architectures": ...}, ("None", "LlamaForCausalLM")),
        ({"auto_map": {"AutoModel": "evil.Model"}}, ("auto_map",)),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, ("quantization_config", "bitsandbytes", "bfloat16")),
        ({"model_type": "qwen2"}, ("model_type", "qwen2", "llama")),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, ("longrope", "llama3", "yarn")),
        ({"rope_scaling": {"rope_type": "linear"}}, ("factor",)),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ("rope_parameters", "full_attention")),
        ({"rope_theta": -1.0}, ("rope_theta", "-1.0")),
        ({"num_hidden_layers": 10**9}, ("num_hidden_layers", "1000000000", "2048")),
        ({"hidden_size": 66}, ("hidden_size 66", "num_attention_heads 4")),
        (family("MistralForCausalLM", "mistral") | {"num_key_value_heads": None}, ("num_key_value_heads",)),
        (family(*QWEN3_MOE, **MOE | {"num_experts_per_tok": 9}), ("num_experts_per_tok 9", "8 experts")),
        (family(*QWEN3_MOE, **MOE, mlp_only_layers=[2]), ("mlp_only_layers", "[2]")),
        (family(*QWEN3_MOE, **MOE | {"num_experts": ...}), ("num_local_experts",)),
        (family(*QWEN2, use_sliding_window=True, layer_types=["full_attention", "chunked"]), ("layer_types", "chunked")),
        ({"rope_parameters": {"full": {"rope_type": "default"}, "rope_type": {}}}, ("rope_type",)),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, ("original_max_position_embeddings",)),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, ("partial_rotary_factor",)),
        ({"hidden_act": "gelu"}, ("gelu", "silu")),
        ({"hidden_size": ...}, ("hidden_size",)),
        ({"hidden_size": "64"}, ("hidden_size", "'64'")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers",)),
        ({"num_key_value_heads": 3}, ("num_key_value_heads 3",)),
        ({"head_dim": 15}, ("head_dim 15",)),
        ({"tie_word_embeddings": "yes"}, ("tie_word_embeddings", "yes")),
        ({"rms_norm_eps": -1}, ("rms_norm_eps", "-1")),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(changes: dict[str, Any], names: tuple[str, ...]) -> None:
    with pytest.raises(ModelRejected) as refused:
        parse_spec(raw(**changes))
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_missing_or_broken_config_is_refused_by_its_path(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelRejected, match=r"config\.json"):
        read_spec(tmp_path)


def test_a_config_is_read_from_its_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw()))
    assert read_spec(tmp_path).kv_token_bytes(2) == 2 * 2 * 4 * 16 * 2


JUNK = [None, True, -1, 0, 3, 2**39, 2**70, 0.5, float("nan"), float("inf"), "64", [], [1], ["a"], {}, {"rope_type": 3}, {"factor": "x"}]
WHOLE = {
    **family(*QWEN3_MOE, **MOE, use_sliding_window=True, sliding_window=32, layer_types=["full_attention"] * 2, mlp_only_layers=[1]),
    "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128, "beta_fast": 9.0},
    **dict.fromkeys(("head_dim", "rms_norm_eps", "tie_word_embeddings", "attention_bias", "norm_topk_prob", "decoder_sparse_step"), None),
    **dict.fromkeys(("hidden_act", "rope_theta", "rope_scaling", "partial_rotary_factor", "original_max_position_embeddings"), None),
}


@pytest.mark.parametrize("key", WHOLE)
def test_junk_under_any_key_is_parsed_or_refused_never_a_crash(key: str) -> None:
    for junk in JUNK:
        written = {name: value for name, value in WHOLE.items() if value is not None} | {key: junk}
        with contextlib.suppress(ModelRejected):
            spec = parse_spec(written)
            assert weight_bytes(spec, torch.bfloat16) > 0


@pytest.mark.parametrize("key", ["rope_type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "mscale"])
def test_junk_under_any_key_of_the_rope_is_parsed_or_refused_never_a_crash(key: str) -> None:
    for junk in JUNK:
        with contextlib.suppress(ModelRejected):
            spec = parse_spec(raw(rope_parameters={"rope_type": "yarn", "factor": 2.0, key: junk}))
            cos, sin = rope_table(spec, 4, torch.float32)
            assert torch.isfinite(torch.cat((cos, sin))).all()
