"""Pace: how long a step would take on a device, by the roofline. Made for `runner.virtual` and `simulate`; pure, no torch.

`pagoda_sizing.roofline` at its typical efficiency plus a fixed cost per step for launches and the host.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pagoda_sizing import roofline
from pagoda_sizing.devices import Device, find
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand, fit
from pagoda_sizing.model import Model

from pagoda_daemon.batch import StepPlan, WorkerLimits
from pagoda_daemon.errors import ConfigRejected

# One step of a small model with captured graphs on an H100: what is left when there is nearly nothing to read.
_HOST_MS = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """A model on a device; `degree` of them together."""

    model: Model
    device: Device
    vocab_size: int
    quantisation: str = "bf16"
    degree: int = 1

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
        lengths, counts = plan.lengths.astype(np.int64), np.diff(plan.starts).astype(np.int64)
        pairs = counts * (2 * lengths - counts + 1) // 2
        step = roofline.Step(plan.tokens, int(plan.sample.sum()), int(lengths.sum()), int(pairs.sum()))
        work = roofline.mixed_work(self.model, self._demand(1), step, self.degree)
        return _HOST_MS + 1000.0 * roofline.seconds(work, self.device, self.quantisation, roofline.TYPICAL)

    def _demand(self, context: int) -> Demand:
        return Demand(context, quantisation=self.quantisation)
