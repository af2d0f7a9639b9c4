"""ModelSpec: config.json parsed once into what the forward pass needs, or refused by name. Called by the torch worker.

Reads Hugging Face's keys as transformers 4 and 5 write them (`rope_scaling` and `rope_parameters`). Differences between families are
fields here, not branches in the forward pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagoda_daemon.errors import ModelRejected

ARCHITECTURES = ("LlamaForCausalLM",)
ROPE_TYPES = ("default", "llama3")
ACTIVATIONS = ("silu",)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes and constants of a decoder-only model."""

    vocab_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    tied: bool
    attention_bias: bool
    mlp_bias: bool

    def kv_token_bytes(self, item_bytes: int) -> int:
        """Bytes of keys and values that one token adds."""
        return 2 * self.layers * self.kv_heads * self.head_dim * item_bytes


def read_spec(directory: Path) -> ModelSpec:
    """Parse `directory`/config.json."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text())
    except OSError as error:
        raise ModelRejected(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelRejected(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelRejected(f"{path} holds no JSON object")
    return parse_spec(raw)


def parse_spec(raw: Mapping[str, Any]) -> ModelSpec:
    """The typed spec, or ModelRejected naming the key, its value and what is accepted."""
    _refuse_unsupported(raw)
    heads, hidden = _count(raw, "num_attention_heads"), _count(raw, "hidden_size")
    kv_heads = _count(raw, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelRejected(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    head_dim = _count(raw, "head_dim", hidden // heads)
    if head_dim % 2:
        raise ModelRejected(f"head_dim {head_dim} is odd: rotary embedding turns pairs")
    theta, scaling = _rope(raw)
    return ModelSpec(
        vocab_size=_count(raw, "vocab_size"),
        hidden=hidden,
        intermediate=_count(raw, "intermediate_size"),
        layers=_count(raw, "num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=_number(raw, "rms_norm_eps", 1e-6),
        max_positions=_count(raw, "max_position_embeddings", 2048),
        rope_theta=theta,
        rope_scaling=scaling,
        tied=_flag(raw, "tie_word_embeddings"),
        attention_bias=_flag(raw, "attention_bias"),
        mlp_bias=_flag(raw, "mlp_bias"),
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    architectures = raw.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else architectures
    if name not in ARCHITECTURES:
        raise ModelRejected(f"architectures {name!r} is not supported: accepted are {', '.join(ARCHITECTURES)}")
    for key, why in (
        ("auto_map", "code from a model directory is never run"),
        ("quantization_config", "quantised weights are not supported"),
    ):
        if raw.get(key) is not None:
            raise ModelRejected(f"config.json has {key}: {why}")
    activation = raw.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise ModelRejected(f"hidden_act {activation!r} is not supported: accepted are {', '.join(ACTIVATIONS)}")


def _rope(raw: Mapping[str, Any]) -> tuple[float, Llama3Scaling | None]:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelRejected(f"rope parameters {rope!r} are no object")
    theta = _number({**raw, **rope}, "rope_theta", 10_000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise ModelRejected(f"rope_type {kind!r} is not supported: accepted are {', '.join(ROPE_TYPES)}")
    if _number({**raw, **rope}, "partial_rotary_factor", 1.0) != 1.0:
        raise ModelRejected("partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return theta, None
    original = _count({**raw, **rope}, "original_max_position_embeddings")
    factors = [_number(rope, key) for key in ("factor", "low_freq_factor", "high_freq_factor")]
    return theta, Llama3Scaling(factors[0], factors[1], factors[2], original)


def _count(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelRejected(f"config.json: {key} is {value!r}, accepted is a whole number from 1")
    return value


def _number(raw: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ModelRejected(f"config.json: {key} is {value!r}, accepted is a number above 0")
    return float(value)


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key)
    if not isinstance(value, bool | None):
        raise ModelRejected(f"config.json: {key} is {value!r}, accepted are true and false")
    return bool(value)
