"""StepAttention: a step's rows that decode through one kernel, its prompts through another. Called by `model.fused` in every layer.

One kernel for both kinds costs more than twice the time of two: its loop is not pipelined (IBM, arXiv 2511.11581).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pagoda_kernels.gpu.paged_attention_decode import DecodeScratch, paged_attention_decode
from pagoda_kernels.gpu.paged_attention_prefill import paged_attention_prefill
from pagoda_kernels.gpu.pages import Pages
from pagoda_kernels.gpu.rope_kv_write import KvPlace
from torch import Tensor

from pagoda_daemon.gpu.inputs import work_name


@dataclass(frozen=True, slots=True)
class Decodes:
    """The first tokens of a step, a row each; `work` by window."""

    count: int
    pages: Pages
    work: Mapping[int | None, Tensor]
    scratch: DecodeScratch


@dataclass(frozen=True, slots=True)
class Prompts:
    """The tokens behind them, rows at `starts`, `work` their tiles."""

    pages: Pages
    starts: Tensor
    work: Tensor


@dataclass(frozen=True, slots=True)
class StepAttention:
    """Whichever of the two a step has."""

    decodes: Decodes | None
    prompts: Prompts | None

    def attend(self, query: Tensor, place: KvPlace, window: int | None) -> Tensor:
        """As `model.fused.Attention`."""
        out = torch.empty_like(query)
        kv, scales = place.kv, place.scales
        first = 0 if self.decodes is None else self.decodes.count
        if self.decodes is not None:
            part = self.decodes
            work = part.work[window]
            paged_attention_decode(query[:first], kv, part.pages, work, part.scratch, scales=scales, window=window, out=out[:first])
        if self.prompts is not None:
            rest = self.prompts
            paged_attention_prefill(query[first:], kv, rest.pages, rest.starts, rest.work, scales=scales, window=window, out=out[first:])
        return out


def decodes_of(sent: Mapping[str, Tensor], windows: tuple[int | None, ...], count: int, block_size: int, scratch: DecodeScratch) -> Decodes:
    """From the arrays of a step on the device."""
    pages = Pages(sent["tables"], sent["table_starts"][:count], sent["lengths"][:count], block_size)
    return Decodes(count, pages, {window: sent[work_name(window)] for window in windows}, scratch)


def prompts_of(sent: Mapping[str, Tensor], block_size: int) -> Prompts:
    """Likewise."""
    pages = Pages(sent["tables"], sent["prompt_table_starts"], sent["prompt_lengths"], block_size)
    return Prompts(pages, sent["starts"], sent["tiles"])
