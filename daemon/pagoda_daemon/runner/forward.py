"""Forward: what turns a step's tokens into logits and keeps the KV pool: torch on any device, or the CPU's native ops. Made by
`runner.load`, called by the model worker. Which of the two it is shows in nothing but speed and rounding.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pagoda_kernels.cpu.native import Batch, NativeDecoder
from torch import Tensor

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.model.attention import KvCache, attention_batch
from pagoda_daemon.model.decoder import Decoder, Flat
from pagoda_daemon.model.lowrank import Adapted, Adapter, adapted
from pagoda_daemon.model.packed_lowrank import NativeAdapter
from pagoda_daemon.runner.answer import Likeliest, wanted_logits
from pagoda_daemon.runner.fixed import pass_size, passes

Wanted = NDArray[np.int64]
"""Flat indexes of the tokens whose logits are asked for."""


Choose = Callable[[StepPlan], Likeliest]


class Forward(Protocol):
    """Writes the keys and values of a step's tokens and returns the logits [wanted, vocab]."""

    def logits(self, plan: StepPlan, wanted: Wanted) -> Tensor: ...

    def states(self, plan: StepPlan, wanted: Wanted) -> tuple[Tensor, Tensor]:
        """The logits, and [wanted, hidden] what the head made them of."""
        ...

    @property
    def likeliest(self) -> Choose | None:
        """What a plan that `decodes` asks for instead of logits: the first largest one of each row. None: it is to be found in them."""
        ...

    def copy_blocks(self, pairs: Ints) -> None:
        """Copy whole blocks, `pairs` [n, 2] of (source, destination), in every layer; all sources are read before anything is written."""
        ...


class TorchForward:
    """Eager PyTorch. `spare_block`: where a deterministic one puts its padding; None for one that is not. `adapters` are by slot."""

    likeliest = None

    def __init__(self, model: Decoder, kv: KvCache, spare_block: int | None = None) -> None:
        self.model = model
        self.kv = kv
        self.adapters: dict[int, Adapter] = {}
        self._spare = spare_block

    def logits(self, plan: StepPlan, wanted: Wanted) -> Tensor:
        return self.states(plan, wanted)[0]

    def states(self, plan: StepPlan, wanted: Wanted) -> tuple[Tensor, Tensor]:
        if self._spare is None:
            return self._pass(plan, wanted)
        spec, like = self.model.spec, self.kv.data
        found = tuple(torch.empty(wanted.size, width, dtype=like.dtype, device=like.device) for width in (spec.vocab_size, spec.hidden))
        for cut, places, taken in passes(plan, wanted, self._spare, pass_size(spec)):
            for whole, part in zip(found, self._pass(cut, wanted_logits(cut)), strict=True):
                whole[self._there(places)] = part[self._there(taken)]
        return found[0], found[1]

    def copy_blocks(self, pairs: Ints) -> None:
        self.kv.copy_blocks(pairs)

    def _pass(self, plan: StepPlan, wanted: Wanted) -> tuple[Tensor, Tensor]:
        slots = None if plan.adapters is None else np.repeat(plan.adapters, np.diff(plan.starts))
        flat = Flat(
            token_ids=self._there(plan.token_ids),
            positions=self._there(plan.positions),
            wanted=self._there(wanted),
            attention=attention_batch(plan, self.kv, self.model.spec, alone=self._spare is not None),
            adapted=None if slots is None else self._adapted(slots),
            adapted_wanted=None if slots is None else self._adapted(slots[wanted]),
        )
        states = self.model.states(flat, self.kv)
        return self.model.head(states), states

    def _adapted(self, slots: Ints) -> Adapted | None:
        return adapted(slots, self.adapters, self.kv.data.device)

    def _there(self, indexes: NDArray[np.integer]) -> Tensor:
        """Where the model is."""
        return torch.from_numpy(indexes.astype(np.int64, copy=False)).to(self.kv.data.device)


class NativeSlots(UserDict[int, NativeAdapter]):
    """The adapters that a decoder holds, by slot. Changed between two steps only."""

    def __init__(self, decoder: NativeDecoder) -> None:
        super().__init__()
        self._decoder = decoder

    def __setitem__(self, slot: int, adapter: NativeAdapter) -> None:
        self._decoder.hold(slot, adapter.packed)
        super().__setitem__(slot, adapter)

    def __delitem__(self, slot: int) -> None:
        super().__delitem__(slot)
        self._decoder.hold(slot, None)


class NativeForward:
    """The CPU's native ops. A token's logits do not depend on what else is in the step (int8: where `wide_rows` is 0)."""

    def __init__(self, decoder: NativeDecoder) -> None:
        self.decoder = decoder
        self.adapters = NativeSlots(decoder)

    def logits(self, plan: StepPlan, wanted: Wanted) -> Tensor:
        return self._step(plan, wanted, None)

    def states(self, plan: StepPlan, wanted: Wanted) -> tuple[Tensor, Tensor]:
        states = np.empty((wanted.size, self.decoder.hidden), np.float32)
        return self._step(plan, wanted, states), torch.from_numpy(states)

    def _step(self, plan: StepPlan, wanted: Wanted, states: NDArray[np.float32] | None) -> Tensor:
        ordered = plan.sampling.scored is None and states is None
        order = None if ordered else np.argsort(wanted, kind="stable")
        batch = Batch(
            ids=np.ascontiguousarray(plan.token_ids, np.int32),
            positions=np.ascontiguousarray(plan.positions, np.int32),
            rows=np.repeat(np.arange(plan.rows.size, dtype=np.int32), np.diff(plan.starts)),
            tables=np.ascontiguousarray(plan.block_tables, np.int32),
            wanted=(wanted if order is None else wanted[order]).astype(np.int32),
            places=None if order is None else order.astype(np.int32),
            adapters=None if plan.adapters is None else np.ascontiguousarray(plan.adapters, np.int32),
        )
        return torch.from_numpy(self.decoder.step(batch, states))

    def likeliest(self, plan: StepPlan) -> Likeliest:
        return Likeliest(*self.decoder.likeliest(plan.token_ids, plan.positions, plan.block_tables, plan.adapters))

    def copy_blocks(self, pairs: Ints) -> None:
        self.decoder.copy_blocks(np.ascontiguousarray(pairs, np.int32))
