"""Paged attention against the formula: rows that decode and rows that prefill in one step, any block size, with and without a window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.model.attention import KvCache, attend, attention_batch
from pagoda_daemon.model.config import ModelSpec, parse_spec
from torch import Tensor

SPEC = parse_spec(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 8,
    }
)
ROWS = [(1, 1), (70, 1), (71, 1), (300, 1), (12, 12), (90, 17), (64, 2), (33, 1)]
"""Context after the step, and how many of its last tokens the step feeds."""


def step(rows: list[tuple[int, int]], block_size: int) -> StepPlan:
    widest = max(-(-length // block_size) for length, _ in rows)
    blocks = np.random.default_rng(0).permutation(len(rows) * widest).astype(np.int32).reshape(len(rows), widest)
    positions = np.concatenate([np.arange(length - fed, length) for length, fed in rows]).astype(np.int32)
    return StepPlan(
        step=0,
        rows=np.arange(len(rows), dtype=np.int32),
        starts=np.cumsum([0, *(fed for _, fed in rows)]).astype(np.int32),
        token_ids=np.zeros_like(positions),
        positions=positions,
        block_tables=blocks,
        sample=np.ones(len(rows), np.bool_),
    )


def by_formula(query: Tensor, keys: Tensor, values: Tensor, position: int, window: int | None) -> Tensor:
    """One query [heads, dim] over a row's keys and values [context, kv_heads, dim], in float64."""
    first = 0 if window is None else max(0, position - window + 1)
    keys, values = (part[first : position + 1].double().repeat_interleave(2, dim=1) for part in (keys, values))
    scores = torch.einsum("hd,thd->ht", query.double(), keys) * keys.shape[-1] ** -0.5
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)


def filled(spec: ModelSpec, plan: StepPlan, block_size: int) -> tuple[KvCache, list[tuple[Tensor, Tensor]]]:
    """A pool of NaN where the rows' earlier keys and values stand in their places, and each row's whole context."""
    kv = KvCache(spec, plan.block_tables.size, block_size, torch.float32)
    kv.data.fill_(torch.nan)
    draw = torch.Generator().manual_seed(0)
    contexts = []
    for row, length in enumerate(plan.lengths.tolist()):
        both = torch.randn(2, length, spec.kv_heads, spec.head_dim, generator=draw)
        before = length - int(plan.starts[row + 1] - plan.starts[row])
        for position in range(before):
            slot = int(plan.block_tables[row, position // block_size]) * block_size + position % block_size
            kv.data[0, :, slot] = both[:, position]
        contexts.append((both[0], both[1]))
    return kv, contexts


@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_attention_is_that_of_the_formula(window: int | None, block_size: int) -> None:
    spec, plan = replace(SPEC, windows=(window,)), step(ROWS, block_size)
    kv, contexts = filled(spec, plan, block_size)
    query = torch.randn(plan.tokens, spec.heads, spec.head_dim, generator=torch.Generator().manual_seed(1))
    fed = [slice(length - count, length) for length, count in ROWS]
    key, value = (torch.cat([context[part][span] for context, span in zip(contexts, fed, strict=True)]) for part in (0, 1))
    got = attend((query, key, value), attention_batch(plan, kv, spec), kv.data[0], window)
    for token, position in enumerate(plan.positions.tolist()):
        row = int(np.searchsorted(plan.starts, token, side="right")) - 1
        wanted = by_formula(query[token], *contexts[row], position, window)
        assert (got[token].double() - wanted).abs().max() < 1e-5, (row, position)


def test_layers_with_and_without_a_window_share_a_step() -> None:
    plan = step(ROWS, 16)
    kv = KvCache(SPEC, plan.block_tables.size, 16, torch.float32)
    batch = attention_batch(plan, kv, replace(SPEC, windows=(None, 20, 20, None)))
    assert set(batch.groups) == {None, 20}
    widest = {window: max(group.slots.numel() // group.rows for group in groups) for window, groups in batch.groups.items()}
    assert widest == {None: 300, 20: 20 + 17 - 1}
