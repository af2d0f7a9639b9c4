"""Forward: what turns a step's tokens into logits and keeps the KV pool: torch on any device, or the CPU's native ops. Made by
`runner.load`, called by the torch worker. Which of the two it is shows in nothing but speed and rounding.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pagoda_kernels.cpu.native import Batch, NativeDecoder
from torch import Tensor

from pagoda_daemon.batch import Ints, StepPlan
from pagoda_daemon.model.attention import KvCache, attention_batch
from pagoda_daemon.model.decoder import Decoder, Flat
from pagoda_daemon.runner.answer import wanted_logits
from pagoda_daemon.runner.fixed import pass_size, passes

Wanted = NDArray[np.int64]
"""Flat indexes of the tokens whose logits are asked for."""


class Forward(Protocol):
    """Writes the keys and values of a step's tokens and returns the logits [wanted, vocab]."""

    def logits(self, plan: StepPlan, wanted: Wanted) -> Tensor: ...

    def copy_blocks(self, pairs: Ints) -> None:
        """Copy whole blocks, `pairs` [n, 2] of (source, destination), in every layer; all sources are read before anything is written."""
        ...


class TorchForward:
    """Eager PyTorch. `spare_block`: where a deterministic one puts its padding; None for one that is not."""

    def __init__(self, model: Decoder, kv: KvCache, spare_block: int | None = None) -> None:
        self.model = model
        self.kv = kv
        self._spare = spare_block

    def logits(self, plan: StepPlan, wanted: Wanted) -> Tensor:
        if self._spare is None:
            return self._pass(plan, wanted)
        found = torch.empty(wanted.size, self.model.spec.vocab_size, dtype=self.kv.data.dtype)
        for cut, places, taken in passes(plan, wanted, self._spare, pass_size(self.model.spec)):
            found[places] = self._pass(cut, wanted_logits(cut))[taken]
        return found

    def copy_blocks(self, pairs: Ints) -> None:
        self.kv.copy_blocks(pairs)

    def _pass(self, plan: StepPlan, wanted: Wanted) -> Tensor:
        flat = Flat(
            token_ids=torch.from_numpy(plan.token_ids.astype(np.int64)),
            positions=torch.from_numpy(plan.positions.astype(np.int64)),
            wanted=torch.from_numpy(wanted),
            attention=attention_batch(plan, self.kv, self.model.spec, alone=self._spare is not None),
        )
        return self.model.logits(flat, self.kv)


class NativeForward:
    """The CPU's native ops. A token's logits do not depend on what else is in the step (int8: where `wide_rows` is 0)."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self.decoder = decoder

    def logits(self, plan: StepPlan, wanted: Wanted) -> Tensor:
        order = None if plan.sampling.scored is None else np.argsort(wanted, kind="stable")
        batch = Batch(
            ids=np.ascontiguousarray(plan.token_ids, np.int32),
            positions=np.ascontiguousarray(plan.positions, np.int32),
            rows=np.repeat(np.arange(plan.rows.size, dtype=np.int32), np.diff(plan.starts)),
            tables=np.ascontiguousarray(plan.block_tables, np.int32),
            wanted=(wanted if order is None else wanted[order]).astype(np.int32),
            places=None if order is None else order.astype(np.int32),
        )
        return torch.from_numpy(self.decoder.step(batch))

    def copy_blocks(self, pairs: Ints) -> None:
        self.decoder.copy_blocks(np.ascontiguousarray(pairs, np.int32))
