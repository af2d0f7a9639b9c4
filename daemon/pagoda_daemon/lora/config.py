"""adapter_config.json of peft → AdapterConfig. What would change answers and is not built is refused by its name. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pagoda_daemon.core.errors import AdapterRejected
from pagoda_daemon.lora.patterns import Pattern, safe_pattern

ALL_LINEAR: Final = "all-linear"
_LARGEST_RANK: Final = 1024
# Without effect on what a trained adapter computes: training, initial values, where it came from.
_WITHOUT_EFFECT: Final = frozenset(
    (
        *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version", "lora_dropout"),
        *("megatron_config", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size"),
        *("runtime_config", "ensure_weight_tying"),
    )
)
_READ: Final = frozenset((
    *("peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules"),
    *("layers_to_transform", "layers_pattern", "bias", "init_lora_weights"),
))  # fmt: skip
# These begin from other base weights than the model's own: the same adapter on the model itself would answer wrongly.
_OTHER_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True, slots=True)
class Targets:
    """Which modules it changes. `whole`: names that a module has or ends with; `pattern` in their place; neither: all linear ones."""

    whole: tuple[str, ...] = ()
    pattern: Pattern | None = None

    def name(self, module: str) -> bool:
        if self.pattern is not None:
            return self.pattern.matches(module)
        return not self.whole or any(module == one or module.endswith(f".{one}") for one in self.whole)


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What peft wrote. `ranks` and `alphas` are exceptions, the first that matches a module counts. `layers`: the only ones changed."""

    rank: int
    alpha: float
    root: bool
    targets: Targets
    excluded: Targets | None
    ranks: tuple[tuple[Pattern, int], ...]
    alphas: tuple[tuple[Pattern, float], ...]
    layers: frozenset[int] | None

    def wants(self, module: str, layer: int) -> bool:
        """Whether peft would change `module`, which is in `layer`."""
        if self.excluded is not None and self.excluded.name(module):
            return False
        return self.targets.name(module) and (self.layers is None or layer in self.layers)

    def rank_of(self, module: str) -> int:
        return next((rank for pattern, rank in self.ranks if pattern.matches(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of the two matrices is multiplied by."""
        rank = self.rank_of(module)
        alpha = next((alpha for pattern, alpha in self.alphas if pattern.matches(module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.root else rank)

    @property
    def largest_rank(self) -> int:
        return max(self.rank, *(rank for _, rank in self.ranks)) if self.ranks else self.rank


def parse_config(text: bytes) -> AdapterConfig:
    """AdapterRejected names the key, its value and what is accepted."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdapterRejected(f"adapter_config.json is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise AdapterRejected("adapter_config.json must hold a JSON object")
    _refuse_unsupported(raw)
    rank, alpha = _rank("r", raw.get("r", 8)), _number("lora_alpha", raw.get("lora_alpha", 8))
    targets = raw.get("target_modules")
    if not targets:
        raise AdapterRejected(f"target_modules must be a list of names, a regular expression or {ALL_LINEAR!r}, got {targets!r}")
    excluded = raw.get("exclude_modules")
    return AdapterConfig(
        rank=rank,
        alpha=alpha,
        root=bool(raw.get("use_rslora")),
        targets=Targets() if isinstance(targets, str) and targets.lower() == ALL_LINEAR else _targets("target_modules", targets),
        excluded=_targets("exclude_modules", excluded) if excluded else None,
        ranks=tuple((pattern, _rank(f"rank_pattern.{key}", value)) for key, pattern, value in _patterns(raw, "rank_pattern")),
        alphas=tuple((pattern, _number(f"alpha_pattern.{key}", value)) for key, pattern, value in _patterns(raw, "alpha_pattern")),
        layers=_layers(raw, targets),
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("peft_type") != "LORA":
        raise AdapterRejected(f"peft_type must be 'LORA', got {raw.get('peft_type')!r:.64}")
    if raw.get("bias", "none") != "none":
        raise AdapterRejected(f"bias must be 'none', got {raw['bias']!r:.64}: trained biases are not supported")
    start = raw.get("init_lora_weights", True)
    if isinstance(start, str) and start.lower().startswith(_OTHER_BASE):
        raise AdapterRejected(
            f"init_lora_weights {start!r:.64} changes the base model's weights; convert the adapter to a plain LoRA when it is saved"
        )
    for key, value in raw.items():
        if value and key not in _READ and key not in _WITHOUT_EFFECT:
            raise AdapterRejected(f"{key!s:.64} {value!r:.64} is not supported; leave it out")


def _rank(key: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= _LARGEST_RANK:
        raise AdapterRejected(f"{key:.128} must be a number from 1 to {_LARGEST_RANK}, got {value!r:.64}")
    return value


def _number(key: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise AdapterRejected(f"{key:.128} must be a finite number, got {value!r:.64}")
    return float(value)


def _targets(key: str, value: Any) -> Targets:
    if isinstance(value, str):
        return Targets(pattern=safe_pattern(key, value))
    if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
        raise AdapterRejected(f"{key} must be a list of names or a regular expression, got {value!r:.64}")
    return Targets(tuple(value))


def _patterns(raw: Mapping[str, Any], key: str) -> list[tuple[str, Pattern, Any]]:
    """As peft reads them: a key stands for a module that it is, or ends with behind a dot."""
    found = raw.get(key) or {}
    if not isinstance(found, dict):
        raise AdapterRejected(f"{key} must be an object from patterns to numbers, got {found!r:.64}")
    return [(one, safe_pattern(f"{key}.{one}", f"(.*\\.)?({one})"), value) for one, value in found.items()]


def _layers(raw: Mapping[str, Any], targets: Any) -> frozenset[int] | None:
    given = raw.get("layers_to_transform")
    if given is None or given == []:
        return None
    layers = [given] if type(given) is int else given
    if not isinstance(layers, list) or not all(type(layer) is int and layer >= 0 for layer in layers):
        raise AdapterRejected(f"layers_to_transform must be a layer or a list of layers, got {given!r:.64}")
    if isinstance(targets, str):
        raise AdapterRejected("layers_to_transform needs target_modules to be a list of names")
    if raw.get("layers_pattern") not in (None, [], "", "layers", ["layers"]):
        raise AdapterRejected(f"layers_pattern must be 'layers', got {raw['layers_pattern']!r:.64}")
    return frozenset(layers)
