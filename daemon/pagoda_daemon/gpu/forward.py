"""GpuForward: a plan → its logits on the device, without waiting for it. Made by `gpu.load`, called by the worker.

A step that only decodes replays a graph; any other launches its kernels one by one. Tokens that were sampled in the step before are taken
from `last`, on the device: the host may not know them yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from pagoda_kernels.gpu.copy_blocks import copy_blocks
from pagoda_kernels.gpu.lora_pool import NARROW, lora_tile
from pagoda_kernels.gpu.paged_attention_decode import DecodeScratch
from torch import Tensor

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import LAST_SAMPLED, StepPlan
from pagoda_daemon.gpu.adapters import AdapterPool, StepChanges
from pagoda_daemon.gpu.attending import StepAttention, decodes_of, prompts_of
from pagoda_daemon.gpu.graphs import DecodeGraphs
from pagoda_daemon.gpu.inputs import (
    ADAPTED,
    ADAPTED_WANTED,
    Arrays,
    Shape,
    bucket_of,
    buckets,
    leading,
    mixed_arrays,
    tiles_name,
    work_name,
)
from pagoda_daemon.gpu.staging import Staging
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.fused import FusedDecoder, FusedStep

_MOST_ITEMS: Final = 8192
"""Pieces of decode attention in a captured step: 4 M tokens of context, and 134 MB of partial sums at 32 heads of 128."""


class GpuForward:
    """`rows`: the most that decode together. Row indexes in plans may be as large as `rows` (a deep check's). `adapters` None: no row of a
    plan has one."""

    adapters: AdapterPool | None = None

    def __init__(self, decoder: FusedDecoder, kv: KvCache, shape: Shape, rows: int) -> None:
        self.decoder = decoder
        self.kv = kv
        self._shape = shape
        self.rows = rows
        place = kv.data.device
        self._staging = Staging(place)
        self._last = torch.zeros(shape.spare_row + 1, dtype=torch.int32, device=place)
        self._scratch = self._scratch_of(_MOST_ITEMS)
        self._graphs: DecodeGraphs | None = None
        self._buckets: tuple[int, ...] = ()

    def capture(self, max_len: int, note: Callable[[float], None]) -> None:
        """Graphs for every number of rows."""
        counts = buckets(self.rows)
        spec, like = self.decoder.spec, self.decoder.weights.norm
        blocks = -(-max_len // self._shape.block_size)
        logits = torch.empty(counts[-1], spec.vocab_size, dtype=like.dtype, device=like.device)
        graphs = DecodeGraphs(self._shape, _MOST_ITEMS, min(counts[-1] * blocks, 2**20), logits)
        graphs.capture(counts, self._decode, note, adapted=self.adapters is not None)
        self._graphs, self._buckets = graphs, counts

    def send(self, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, Tensor]:
        """`arrays` on the device."""
        return self._staging.send(arrays)

    def logits(self, plan: StepPlan, wanted: NDArray[np.int64]) -> Tensor:
        """[wanted, vocab]; valid until the next step is launched. Keys and values are written."""
        graph = self._replayed(plan, wanted)
        return self.decoder.head(self.states(plan, wanted)) if graph is None else graph

    def states(self, plan: StepPlan, wanted: NDArray[np.int64]) -> Tensor:
        """[wanted, hidden]: what the head makes the logits of."""
        arrays = mixed_arrays(plan, self._shape, wanted)
        sent = self._staging.send(arrays)
        step = self._step(sent, leading(plan), self._room_for(arrays))
        if plan.adapters is not None:
            slots = np.repeat(plan.adapters, np.diff(plan.starts))
            mine, wanted_too = self._changes(sent, ADAPTED, lora_tile(slots)), self._changes(sent, ADAPTED_WANTED, lora_tile(slots[wanted]))
            step = replace(step, adapted=mine, adapted_wanted=wanted_too)
        return self.decoder.states(replace(step, wanted=sent["wanted"]), self.kv)

    def note(self, rows: Tensor, tokens: Tensor) -> None:
        """`rows` int64 have sampled `tokens` int32. What a row without a finite logit sampled is any number; the next step, which may be
        launched already, must find an id of the vocabulary: one outside of it ends the process's use of the device."""
        self._last.index_copy_(0, rows, tokens.clamp(0, self.decoder.spec.vocab_size - 1))

    def copy_blocks(self, pairs: Ints) -> None:
        """As `runner.forward.Forward`."""
        sent = self.send({"pairs": np.ascontiguousarray(pairs, np.int32)})
        copy_blocks(self.kv.data, sent["pairs"].view(-1, 2), self._shape.block_size, self.kv.scales)

    def _replayed(self, plan: StepPlan, wanted: NDArray[np.int64]) -> Tensor | None:
        bucket = bucket_of(plan.rows.size, self._buckets) if self._graphs is not None else None
        # A graph answers in the order of the rows. Scored prompts of one token come behind all that sample.
        alone = plan.token_ids.size == plan.rows.size and np.array_equal(wanted, np.arange(plan.rows.size))
        if bucket is None or not alone or self._graphs is None:
            return None
        return self._graphs.replay(plan, bucket, self._staging)

    def _decode(self, sent: Mapping[str, Tensor], rows: int, logits: Tensor) -> None:
        """What a graph holds."""
        step = replace(self._step(sent, rows, self._scratch), adapted=self._changes(sent, ADAPTED, NARROW))
        self.decoder.head(self.decoder.states(step, self.kv), logits)

    def _changes(self, sent: Mapping[str, Tensor], name: str, tile: int) -> StepChanges | None:
        """None where no token has an adapter."""
        if self.adapters is None or name not in sent or not sent[name].numel():
            return None
        return self.adapters.changes(sent[name], sent[tiles_name(name)], tile)

    def _step(self, sent: Mapping[str, Tensor], decodes: int, scratch: DecodeScratch) -> FusedStep:
        shape, known = self._shape, sent["token_ids"]
        ids = torch.where(known == LAST_SAMPLED, self._last.index_select(0, sent["rows"]), known)
        attention = StepAttention(
            decodes_of(sent, shape.windows, decodes, shape.block_size, scratch) if decodes else None,
            prompts_of(sent, shape.block_size) if known.numel() > decodes else None,
        )
        return FusedStep(ids, sent["positions"], sent["slots"], None, attention)

    def _room_for(self, arrays: Arrays) -> DecodeScratch:
        """The scratch of the graphs; a larger one where a step has more pieces than they may."""
        items = max(int(arrays[work_name(window)][0]) for window in self._shape.windows)
        return self._scratch if items <= _MOST_ITEMS else self._scratch_of(items)

    def _scratch_of(self, items: int) -> DecodeScratch:
        spec = self.decoder.spec
        return DecodeScratch.of(items, spec.heads, spec.head_dim, self.kv.data.device)
