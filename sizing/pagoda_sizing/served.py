"""Which models the daemon serves, told from config.json before a byte of weights is fetched. Called by placement, `plan` and `validate`.

The daemon has the last word (`model/config.py`), and a test holds both against each other: what is refused here it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pagoda_sizing.model import Model

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""Their `model_type`, by the name that config.json has."""


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
    if (stored := config.get("quantization_config")) is not None:
        method = stored.get("quant_method") if isinstance(stored, dict) else stored
        return f"its weights are stored as {method!r:.100}; they must be float32, float16 or bfloat16"
    activation = config.get("hidden_act") or "silu"
    return "" if activation == "silu" else f"hidden_act {activation!r:.100} is not served; it must be silu"


def misshapen(model: Model) -> str:
    """Returns why the shapes of a model that can be counted do not divide; empty if they do."""
    width = model.attention.query_dim
    return f"head_dim {width} is odd, and rotary embedding turns pairs" if width % 2 else ""
