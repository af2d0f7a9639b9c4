"""config.json: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pagoda_daemon.errors import ModelRejected
from pagoda_daemon.model.config import Llama3Scaling, parse_spec, read_spec

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
    assert (spec.tied, spec.attention_bias, spec.mlp_bias) == (False, False, False)


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


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, ("GPT2LMHeadModel", "LlamaForCausalLM")),
        ({"architectures": ...}, ("None", "LlamaForCausalLM")),
        ({"auto_map": {"AutoModel": "evil.Model"}}, ("auto_map",)),
        ({"quantization_config": {"quant_method": "awq"}}, ("quantization_config",)),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ("yarn", "llama3")),
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
