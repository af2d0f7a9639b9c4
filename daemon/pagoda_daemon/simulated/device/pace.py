"""Pace: how long a step would take on a device, by the roofline. Made for `virtual` and `simulated.replay`; pure, no torch.

`pagoda_sizing.roofline` at its typical efficiency plus a fixed cost per step for launches and the host.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pagoda_sizing import roofline
from pagoda_sizing.devices import Device, find
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand, fit
from pagoda_sizing.model import Model

from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.core.errors import ConfigRejected

# One step of a small model with captured graphs on an H100: what is left when there is nearly nothing to read.
_HOST_MS = 0.5
_NOTHING = {"tokens": 0, "sampled": 0, "read": 0, "pairs": 0}


class Pace:
    """A model on a device; `degree` of them together. A step's work is linear in its parts, but for the experts that it visits: what each
    part costs is asked of the roofline once."""

    def __init__(self, model: Model, device: Device, vocab_size: int, quantisation: str = "bf16", degree: int = 1) -> None:
        self.model, self.device, self.vocab_size, self.quantisation, self.degree = model, device, vocab_size, quantisation, degree
        self._parts = {name: self._work(roofline.Step(**{**_NOTHING, name: 1})) for name in _NOTHING}
        self._weight_bytes: dict[int, float] = {}

    @classmethod
    def read(cls, config: Path, device: str, quantisation: str = "bf16", degree: int = 1) -> Pace:
        """From a config.json and a device of the catalogue; ConfigRejected names what is wrong."""
        try:
            raw = json.loads(config.read_text())
            pace = cls(parse_model(raw), find(device), int(raw["vocab_size"]), quantisation, degree)
            pace.limits(16, None)
        except OSError as error:
            raise ConfigRejected(f"{config}: {error.strerror}") from error
        except KeyError as error:
            raise ConfigRejected(f"{config}: no {error}") from error
        except (ValueError, SizingError) as error:
            raise ConfigRejected(f"{config} on {device}: {error}") from error
        return pace

    def limits(self, block_size: int, max_model_len: int | None) -> WorkerLimits:
        """What memory leaves for KV beside weights and reserve."""
        context = min(max_model_len or self.model.max_context, self.model.max_context)
        found = fit(self.model, self.device, self._demand(context), self.degree)
        free = found.memory_bytes - found.weight_bytes - found.reserve_bytes
        per_token = found.kv_bytes_per_request / context
        blocks = int(free // (per_token * block_size)) if free > 0 else 0
        if blocks * block_size < context:
            raise ConfigRejected(f"{self.device.name} holds {blocks * block_size} tokens of KV beside the weights, wanted are {context}")
        windows = {window for window in self.model.windows if window is not None}
        window = max(windows) if windows and None not in self.model.windows else None
        return WorkerLimits(blocks, block_size, self.vocab_size, context, window)

    def milliseconds(self, plan: StepPlan) -> float:
        """One step of `plan`."""
        lengths, counts = plan.lengths.astype(np.int64), plan.starts[1:] - plan.starts[:-1]
        pairs = int((counts * (2 * lengths - counts + 1)).sum()) // 2
        amounts = {"tokens": plan.tokens, "sampled": int(plan.sample.sum()), "read": int(lengths.sum()), "pairs": pairs}
        parts = [(amounts[name], part) for name, part in self._parts.items()]
        work = roofline.Work(
            self._read_bytes(plan.tokens),
            sum(amount * part.flops for amount, part in parts),
            sum(amount * part.kv_bytes for amount, part in parts),
            sum(amount * part.link_bytes for amount, part in parts),
        )
        return _HOST_MS + 1000.0 * roofline.seconds(work, self.device, self.quantisation, roofline.TYPICAL)

    def _read_bytes(self, tokens: int) -> float:
        """Weights that a step reads; only experts make it depend on how many tokens there are."""
        key = tokens if self.model.experts else 1
        if key not in self._weight_bytes:
            self._weight_bytes[key] = self._work(roofline.Step(**{**_NOTHING, "tokens": key})).weight_bytes
        return self._weight_bytes[key]

    def _work(self, step: roofline.Step) -> roofline.Work:
        return roofline.mixed_work(self.model, self._demand(1), step, self.degree)

    def _demand(self, context: int) -> Demand:
        return Demand(context, quantisation=self.quantisation)
