"""Which models the daemon serves, told from config.json before a byte of weights is fetched. Called by placement, `plan` and `validate`.

The daemon has the last word (`model/config.py`), and a test holds both against each other: what is refused here it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pagoda_sizing.config import Config
from pagoda_sizing.errors import SizingError, UnknownQuantisation
from pagoda_sizing.model import Model
from pagoda_sizing.rope import rope_of
from pagoda_sizing.stored import stored_as

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""Their `model_type`, by the name that config.json has."""

# Ten times what any published model has. A file of a hundred bytes must not keep the loader busy for hours over 2^39 experts.
LARGEST: Final = {
    "vocab_size": 2**24,
    "hidden_size": 2**18,
    "intermediate_size": 2**21,
    "moe_intermediate_size": 2**21,
    "num_hidden_layers": 2048,
    "num_attention_heads": 4096,
    "num_experts": 2**13,
    "num_local_experts": 2**13,
    "head_dim": 2**14,
}


def unserved(config: Mapping[str, Any]) -> str:
    """Returns why no daemon serves such a model; empty if one may. Names of architectures are judged only if config.json has them."""
    named, kind = config.get("architectures"), config.get("model_type")
    name = named[0] if isinstance(named, list) and len(named) == 1 else named
    if name is not None and not (isinstance(name, str) and name in ARCHITECTURES):
        return f"architectures {name!r:.200} is not served; served are {', '.join(ARCHITECTURES)}"
    accepted = tuple(ARCHITECTURES.values()) if name is None else (ARCHITECTURES[name],)
    if kind is not None and kind not in accepted:
        return f"model_type {kind!r:.100} is not served; it must be {' or '.join(accepted)}"
    if config.get("auto_map") is not None:
        return "config.json has auto_map, and code from a model's files is never run"
    try:
        stored_as(config)
    except UnknownQuantisation as refused:
        return str(refused)
    activation = config.get("hidden_act") or "silu"
    if activation != "silu":
        return f"hidden_act {activation!r:.100} is not served; it must be silu"
    return beyond(config) or _rope(config)


def beyond(config: Mapping[str, Any]) -> str:
    """Returns which dimension is larger than any model's; empty if none is."""
    found = ((key, config.get(key), most) for key, most in LARGEST.items())
    wrong = (f"config.json: {key} must be at most {most}, got {value!r:.64}" for key, value, most in found if _above(value, most))
    return next(wrong, "")


def _above(value: Any, most: int) -> bool:
    return isinstance(value, int) and value > most


def _rope(config: Mapping[str, Any]) -> str:
    try:
        rope_of(Config(dict(config), {}))
    except SizingError as refused:
        return str(refused)
    return ""


def misshapen(model: Model) -> str:
    """Returns why the shapes of a model that can be counted do not divide; empty if they do."""
    width = model.attention.query_dim
    return f"head_dim {width} is odd, and rotary embedding turns pairs" if width % 2 else ""
