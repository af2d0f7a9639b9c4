"""What the paged attention kernels compute, in float64: one row, one KV head group, one plain softmax after the other."""

import torch
from torch import Tensor

from pagoda_kernels.gpu.pages import Pages


def paged_attention(query: Tensor, kv: Tensor, pages: Pages, starts: Tensor, window: int | None = None) -> Tensor:
    """Return the causal attention of each row's last tokens over the row's whole context, float64 [tokens, heads, head_dim].

    query [tokens, heads, head_dim]: the queries of row r are query[starts[r]:starts[r + 1]], the last tokens of its context of
    pages.lengths[r] tokens. kv [2, slots, kv_heads, head_dim]. A query sees itself and what comes before it; with a window only the
    last `window` of these tokens, itself included. The scale is 1 / sqrt(head_dim). A query before the first token of its row (as in
    a padding row of length 0) gives zeros.
    """
    out = torch.zeros(query.shape, dtype=torch.float64, device=query.device)
    for row, length in enumerate(pages.lengths.tolist()):
        queries = slice(int(starts[row]), int(starts[row + 1]))
        keys, values = kv[:, row_slots(pages, row)].double()
        positions = torch.arange(queries.start, queries.stop, device=query.device) - queries.stop + length
        out[queries] = _attention(query[queries].double(), keys, values, _visible(positions, length, window))
    return out


def paged_attention_decode(query: Tensor, kv: Tensor, pages: Pages, window: int | None = None) -> Tensor:
    """Return the attention of one query per row, the last token of its context; see paged_attention. query [rows, heads, head_dim]."""
    return paged_attention(query, kv, pages, torch.arange(pages.rows + 1), window)


def row_slots(pages: Pages, row: int) -> Tensor:
    """Return the slots of a row's tokens in their order, int64 [length]."""
    tokens = torch.arange(int(pages.lengths[row]), device=pages.tables.device)
    blocks = pages.tables[int(pages.table_starts[row]) + tokens // pages.block_size]
    return blocks.long() * pages.block_size + tokens % pages.block_size


def _visible(positions: Tensor, length: int, window: int | None) -> Tensor:
    """Which tokens a query at each position sees: bool [queries, length]."""
    tokens = torch.arange(length, device=positions.device)
    seen = tokens[None, :] <= positions[:, None]
    return seen if window is None else seen & (tokens[None, :] > positions[:, None] - window)


def _attention(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """query [queries, heads, head_dim], keys and values [length, kv_heads, head_dim], visible [queries, length]; all float64."""
    group = query.shape[1] // keys.shape[1]
    values = values.masked_fill(~visible.any(0)[:, None, None], 0.0)  # what no query sees may be NaN, and 0 * NaN is NaN
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", query, keys) / query.shape[2] ** 0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).masked_fill(~visible, 0.0)
    return torch.einsum("hqk,khd->qhd", weights, values)
