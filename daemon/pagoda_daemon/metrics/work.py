"""ModelWork: what the engine's steps cost a device, in operations and bytes, by the arithmetic of `pagoda_sizing`. Pure.

Made by the front from the model's config.json, asked by `exposition` at each scrape. A model that sizing does not know has no estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

from pagoda_contracts.launch import EngineConfig
from pagoda_sizing import roofline
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand
from pagoda_sizing.model import Model

from pagoda_daemon.core.messages import Computed

_NOTHING: Final = {"tokens": 0, "sampled": 0, "read": 0, "pairs": 0}
_BF16_BYTES: Final = 2  # sizing counts in it
_KEPT: Final = {"float8": "fp8", "int8": "int8"}


class Estimate(NamedTuple):
    """Totals since the engine began."""

    flops: float
    read_bytes: float
    write_bytes: float


class ModelWork:
    """A model in the format that it is served in."""

    def __init__(self, model: Model, engine: EngineConfig) -> None:
        self._model = model
        kept = _KEPT.get(engine.kv_dtype or "", "bf16")
        held = model.stored if engine.device == "cuda" and engine.dtype == "bfloat16" else "bf16"
        self._demand = Demand(1, quantisation=engine.quantization or held, kv_dtype=kept)
        self._wider = 4 / _BF16_BYTES if engine.dtype == "float32" else 1.0
        self._parts = {name: self._of(**{name: 1}) for name in _NOTHING}
        self._kv_bytes = model.kv_bytes_per_token(kept) * self._wider

    @classmethod
    def of(cls, config: Mapping[str, Any], engine: EngineConfig) -> Self | None:
        """None if sizing does not know the model of this config.json."""
        try:
            return cls(parse_model(dict(config)), engine)
        except (SizingError, ValueError, TypeError, KeyError):
            return None

    def estimate(self, computed: Computed, steps: int) -> Estimate:
        """Each step reads the weights once; of experts, those that a step of average size visits."""
        amounts = {name: getattr(computed, name) for name in _NOTHING}
        flops = sum(amount * self._parts[name].flops for name, amount in amounts.items())
        kv = sum(amount * self._parts[name].kv_bytes for name, amount in amounts.items())
        weights = steps * self._of(tokens=round(computed.tokens / steps)).weight_bytes if steps else 0.0
        return Estimate(flops, (weights + kv) * self._wider, computed.tokens * self._kv_bytes)

    def _of(self, **amounts: int) -> roofline.Work:
        return roofline.mixed_work(self._model, self._demand, roofline.Step(**(_NOTHING | amounts)))
