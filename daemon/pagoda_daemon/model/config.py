"""ModelSpec: config.json parsed once into what the forward pass needs, or refused by name. Called by the model worker.

Differences between families are rows of one table and fields of one spec, not branches in the forward pass. Key reading and the
rules for sliding windows are those of `pagoda_sizing`, so that what was planned is what is loaded. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pagoda_sizing.config import Config
from pagoda_sizing.errors import SizingError
from pagoda_sizing.served import beyond
from pagoda_sizing.stored import StoredAs, stored_as
from pagoda_sizing.windows import Windows, all_layers, qwen_all, qwen_upper

from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.model.scaling import LinearScaling, Llama3Scaling, YarnScaling, parse_rope

ACTIVATIONS: Final = ("silu",)


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a checkpoint calls the block of a sparse layer and an expert's three matrices."""

    block: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Experts:
    """A sparse layer's MLP: `per_token` of `count` experts of width `intermediate`; `normalised`: their weights sum to 1."""

    count: int
    per_token: int
    intermediate: int
    normalised: bool
    names: ExpertNames


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shapes and constants of a decoder-only model; `windows` and `sparse` have one entry per layer."""

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
    rope_scaling: LinearScaling | Llama3Scaling | YarnScaling | None
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: Windows
    sparse: tuple[bool, ...]
    experts: Experts | None
    stored: StoredAs | None = None
    """How a quantised checkpoint stores its matrices; None: as numbers of 16 or 32 bits."""

    def kv_token_bytes(self, item_bytes: int) -> int:
        """Bytes of keys and values that one token adds; those of 8 bits have a float32 scale per head."""
        scale = 4 if item_bytes == 1 else 0
        return 2 * self.layers * self.kv_heads * (self.head_dim * item_bytes + scale)

    @property
    def sliding_window(self) -> int | None:
        """The window, where every layer has one: what lies further back no layer reads again."""
        return max(window for window in self.windows if window is not None) if all(self.windows) else None

    def within(self, max_len: int) -> ModelSpec:
        """The same for contexts of at most `max_len` tokens: a window that none of them outgrows is none."""
        return replace(self, windows=tuple(w if w is not None and w < max_len else None for w in self.windows))


@dataclass(frozen=True)
class Family:
    """How an architecture differs from Llama. `absent` stands for keys that a config.json does not have (null is not absent)."""

    model_type: str
    windows: Callable[[Config, int], Windows]
    absent: Mapping[str, Any] = field(default_factory=dict)
    grouped: bool = True
    """num_key_value_heads must be given; where False its absence means one per head."""
    always_qkv_bias: bool = False
    asks_attention_bias: bool = False
    asks_mlp_bias: bool = False
    qk_norm: bool = False
    experts: ExpertNames | None = None
    always_normalised: bool = False
    theta: float = 10_000.0


def _no_window(_config: Config, layers: int) -> Windows:
    return (None,) * layers


_QWEN: Final = {"sliding_window": 4096, "max_window_layers": 28}
_QWEN3: Final = {**_QWEN, "head_dim": 128}
FAMILIES: Final = {
    "LlamaForCausalLM": Family(
        "llama", _no_window, {"max_position_embeddings": 2048}, grouped=False, asks_attention_bias=True, asks_mlp_bias=True
    ),
    "MistralForCausalLM": Family("mistral", all_layers, {"sliding_window": 4096}),
    "MixtralForCausalLM": Family(
        "mixtral",
        all_layers,
        {"rms_norm_eps": 1e-5},
        experts=ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
        always_normalised=True,
        theta=1_000_000.0,
    ),
    "Qwen2ForCausalLM": Family("qwen2", qwen_upper, _QWEN, always_qkv_bias=True),
    "Qwen3ForCausalLM": Family("qwen3", qwen_upper, _QWEN3, asks_attention_bias=True, qk_norm=True),
    "Qwen3MoeForCausalLM": Family(
        "qwen3_moe",
        qwen_all,
        {"sliding_window": 4096},
        asks_attention_bias=True,
        qk_norm=True,
        experts=ExpertNames("mlp", "gate_proj", "up_proj", "down_proj"),
    ),
}


def read_spec(directory: Path) -> ModelSpec:
    """Parse `directory`/config.json."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelRejected(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelRejected(f"{path} holds no JSON object")
    return parse_spec(raw)


def parse_spec(raw: Mapping[str, Any]) -> ModelSpec:
    """The typed spec, or ModelRejected naming the key, its value and what is accepted."""
    family = _family(raw)
    _refuse_unsupported(raw)
    try:
        return replace(_spec(family, Config({**family.absent, **raw}, {})), stored=stored_as(raw))
    except SizingError as error:
        raise ModelRejected(str(error)) from error


def _family(raw: Mapping[str, Any]) -> Family:
    architectures = raw.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else architectures
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise ModelRejected(f"architectures {name!r} is not supported; supported are {', '.join(FAMILIES)}")
    if raw.get("model_type", family.model_type) != family.model_type:
        raise ModelRejected(f"model_type {raw['model_type']!r} contradicts architectures {name!r}; it must be {family.model_type!r}")
    return family


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("auto_map") is not None:
        raise ModelRejected("config.json has auto_map: code from a model directory is never run")
    if why := beyond(raw):
        raise ModelRejected(why)
    activation = raw.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise ModelRejected(f"hidden_act {activation!r} is not supported; supported are {', '.join(ACTIVATIONS)}")


def _spec(family: Family, config: Config) -> ModelSpec:
    layers = config.number("num_hidden_layers")
    heads, kv_heads, head_dim = _heads(family, config)
    rope = parse_rope(config, family.theta)
    biased = family.asks_attention_bias and config.flag("attention_bias")
    experts = _experts(family, config)
    spec = ModelSpec(
        vocab_size=config.number("vocab_size"),
        hidden=config.number("hidden_size"),
        intermediate=config.number("intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=config.real("rms_norm_eps", 1e-6),
        max_positions=rope.max_positions,
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        tied=config.flag("tie_word_embeddings"),
        qkv_bias=biased or family.always_qkv_bias,
        output_bias=biased,
        mlp_bias=family.asks_mlp_bias and config.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        windows=family.windows(config, layers),
        sparse=_sparse(config, layers) if experts else (False,) * layers,
        experts=experts,
    )
    return spec.within(spec.max_positions)


def _heads(family: Family, config: Config) -> tuple[int, int, int]:
    heads = config.number("num_attention_heads")
    kv_heads = config.number("num_key_value_heads") if family.grouped else config.optional("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ModelRejected(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    head_dim = config.optional("head_dim")
    if head_dim is None:
        hidden = config.number("hidden_size")
        if hidden % heads:
            raise ModelRejected(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and head_dim is missing")
        head_dim = hidden // heads
    if head_dim % 2:
        raise ModelRejected(f"head_dim {head_dim} is odd: rotary embedding turns pairs")
    return heads, kv_heads, head_dim


def _experts(family: Family, config: Config) -> Experts | None:
    if family.experts is None:
        return None
    count, chosen = config.number("num_local_experts", "num_experts"), config.number("num_experts_per_tok")
    if chosen > count:
        raise ModelRejected(f"num_experts_per_tok {chosen} is more than the {count} experts there are")
    return Experts(
        count=count,
        per_token=chosen,
        intermediate=config.number("moe_intermediate_size", "intermediate_size"),
        normalised=family.always_normalised or config.flag("norm_topk_prob"),
        names=family.experts,
    )


def _sparse(config: Config, layers: int) -> tuple[bool, ...]:
    """Every `decoder_sparse_step`-th layer has experts, those in `mlp_only_layers` never."""
    step, dense = config.optional("decoder_sparse_step") or 1, config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(layer) is int and 0 <= layer < layers for layer in dense):
        raise ModelRejected(f"mlp_only_layers must be a list of layers from 0 to {layers - 1}, got {dense!r}")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
