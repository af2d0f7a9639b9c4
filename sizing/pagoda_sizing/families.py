"""Which tensors an architecture has: config.json to `Model`. One table of decoder families; MLA, GPT-2 and BERT have their own count.

Called with a config.json. Every row is checked against the published count of real models and, tensor by tensor, against
transformers in tests/parity.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from pagoda_sizing.config import Config
from pagoda_sizing.encoders import bert, gpt2
from pagoda_sizing.errors import BadConfig, UnknownArchitecture
from pagoda_sizing.mla import deepseek
from pagoda_sizing.model import Attention, Experts, Model, Parameters
from pagoda_sizing.stored import form_of
from pagoda_sizing.vision import siglip
from pagoda_sizing.windows import all_layers, alternate, every_nth_full, qwen_all, qwen_upper


@dataclass(frozen=True)
class Family:
    """How a decoder with gated MLP and RMSNorm differs from Llama. `defaults` are those of its config class in transformers."""

    windows: Any
    defaults: dict[str, Any] = field(default_factory=dict)
    norms: int = 2
    qk_norm: bool = False
    qkv_bias: bool = False
    grouped: bool = True
    """num_key_value_heads must be given; where False its absence means one per head."""


GEMMA: Final = {"tie_word_embeddings": True, "head_dim": 256}
GEMMA3: Final = {
    **GEMMA,
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
}
FAMILIES: Final = {
    "llama": Family(all_layers, grouped=False),
    "mistral": Family(all_layers),
    "mixtral": Family(all_layers),
    "qwen2": Family(qwen_upper, qkv_bias=True),
    "qwen3": Family(qwen_upper, defaults={"head_dim": 128}, qk_norm=True),
    "qwen3_moe": Family(qwen_all, defaults={"decoder_sparse_step": 1}, qk_norm=True),
    "gemma": Family(all_layers, defaults=GEMMA),
    "gemma2": Family(alternate, defaults={**GEMMA, "sliding_window": 4096}, norms=4),
    "gemma3_text": Family(every_nth_full, defaults=GEMMA3, norms=4, qk_norm=True),
    "phi3": Family(all_layers, grouped=False),
}
OTHERS: Final = {"deepseek_v2": deepseek, "deepseek_v3": deepseek, "gpt2": gpt2, "bert": bert, "roberta": bert, "xlm-roberta": bert}
ACCEPTED: Final = tuple(sorted([*FAMILIES, *OTHERS, "gemma3"]))


def parse_model(raw: dict[str, Any]) -> Model:
    """The model that a config.json describes."""
    return replace(_model(raw), stored=form_of(raw))


def _model(raw: dict[str, Any]) -> Model:
    kind = raw.get("model_type")
    if kind == "gemma3":
        return _with_vision(raw)
    if kind in OTHERS:
        return OTHERS[kind](Config(raw, {}))
    if kind not in FAMILIES:
        raise UnknownArchitecture(f"model_type {kind!r} is not supported; supported are {', '.join(ACCEPTED)}")
    return _decoder(kind, FAMILIES[kind], Config(raw, FAMILIES[kind].defaults))


def _with_vision(raw: dict[str, Any]) -> Model:
    outer = Config(raw, {})
    text, vision = outer.section("text_config"), outer.section("vision_config")
    if text is None or vision is None:
        raise BadConfig("config.json: model_type gemma3 needs text_config and vision_config; text alone is gemma3_text")
    model = parse_model({**text, "model_type": "gemma3_text"})
    counted = Parameters(**{**vars(model.parameters), "vision": siglip(Config(vision, {"vision_use_head": True}), model.hidden)})
    return Model(**{**vars(model), "kind": "gemma3", "parameters": counted})


def _decoder(kind: str, family: Family, config: Config) -> Model:
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    attention = _attention(family, config, hidden)
    dense_mlp, experts, routers, routing = _mlp(config, hidden, layers)
    inner = config.number("intermediate_size")
    vocabulary = config.number("vocab_size") * hidden
    width = (attention.heads + 2 * attention.kv_heads) * attention.query_dim
    projections = hidden * (width + attention.heads * attention.query_dim)
    small = hidden * family.norms + _biases(family, config, width, hidden) + (2 * attention.query_dim if family.qk_norm else 0)
    return Model(
        kind=kind,
        hidden=hidden,
        max_context=config.number("max_position_embeddings"),
        parameters=Parameters(
            embedding=vocabulary,
            head=0 if config.flag("tie_word_embeddings") else vocabulary,
            dense=layers * projections + dense_mlp,
            experts=experts,
            small=layers * small + routers + hidden,
        ),
        attention=attention,
        windows=family.windows(config, layers),
        experts=routing,
        mlp_width=routing.per_token * (hidden + (config.optional("moe_intermediate_size") or inner)) if routing else inner,
    )


def _attention(family: Family, config: Config, hidden: int) -> Attention:
    heads = config.number("num_attention_heads")
    kv_heads = config.number("num_key_value_heads") if family.grouped else config.optional("num_key_value_heads") or heads
    if kv_heads > heads or heads % kv_heads:
        raise BadConfig(f"config.json: num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    width = config.optional("head_dim")
    if width is None:
        if hidden % heads:
            raise BadConfig(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and head_dim is missing")
        width = hidden // heads
    return Attention(heads, kv_heads, width, width)


def _biases(family: Family, config: Config, qkv_width: int, hidden: int) -> int:
    everywhere = config.flag("attention_bias")
    attention = qkv_width + hidden if everywhere else qkv_width if family.qkv_bias else 0
    mlp = 2 * config.number("intermediate_size") + hidden if config.flag("mlp_bias") else 0
    return attention + mlp


def _mlp(config: Config, hidden: int, layers: int) -> tuple[int, int, int, Experts | None]:
    """Parameters of dense MLPs, of experts and of routers, and the routing."""
    count = config.optional("num_local_experts") or config.optional("num_experts")
    dense = 3 * hidden * config.number("intermediate_size")
    if count is None:
        return layers * dense, 0, 0, None
    chosen = config.number("num_experts_per_tok")
    if chosen > count:
        raise BadConfig(f"config.json: num_experts_per_tok {chosen} is more than the {count} experts there are")
    width = config.optional("moe_intermediate_size") or config.number("intermediate_size")
    only = config.get("mlp_only_layers") or []
    step = config.optional("decoder_sparse_step") or 1
    sparse = sum(1 for layer in range(layers) if layer not in only and (layer + 1) % step == 0)
    return (layers - sparse) * dense, sparse * count * 3 * hidden * width, sparse * count * hidden, Experts(count, chosen)
