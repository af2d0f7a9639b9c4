"""paged_attention_prefill against float64: ragged rows, chunks, windows, and what it must not see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_kernels.gpu.paged_attention_prefill import paged_attention_prefill, prefill_work
from pagoda_kernels.gpu.pages import Pages
from pagoda_kernels.gpu.prefill_config import Config, choose_config, quantised_config, query_tile
from pagoda_kernels.reference.paged_attention import paged_attention
from pagoda_kernels.reference.quantise import dequantise, quantise
from pagoda_kernels.testing import KIND_OF, assert_close, device
from torch import Tensor

pytestmark = pytest.mark.deep  # seconds of Triton's interpreter

SMALL = Config(block_m=32, block_n=32, num_warps=4, num_stages=2)
"""Tiles so small that a hundred tokens have many edges."""
LONGER = replace(SMALL, block_n=64)
"""For blocks of 64: a tile of keys is whole blocks."""
FORMS = [LONGER, replace(LONGER, descriptors=True)]
MIXED = [(1, 1), (1, 70), (20, 20), (3, 0), (33, 90), (0, 40), (5, 64)]
"""Rows as (queries, length): one query, a whole prompt, padding, chunks with what came before, no query."""


@dataclass(frozen=True)
class Batch:
    query: Tensor
    kv: Tensor
    pages: Pages
    starts: Tensor
    scales: Tensor | None = None


def batch(
    rows: list[tuple[int, int]],
    heads: int = 2,
    kv_heads: int = 1,
    *,
    head_dim: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
) -> Batch:
    """Random rows in shuffled blocks; every slot that holds no token is NaN, and the table ends with the last block of the last row."""
    random = torch.Generator().manual_seed(1 + sum(length for _, length in rows))
    blocks = [-(-length // block_size) for _, length in rows]
    tables = torch.randperm(sum(blocks) + 2, generator=random)[: sum(blocks)].int()
    table_starts = torch.tensor([sum(blocks[:row]) for row in range(len(rows))], dtype=torch.int32)
    kv = torch.full((2, (sum(blocks) + 2) * block_size, kv_heads, head_dim), torch.nan, dtype=dtype)
    for (_, length), first in zip(rows, table_starts.tolist(), strict=True):
        token = torch.arange(length)
        slots = tables[first + token // block_size].long() * block_size + token % block_size
        kv[:, slots] = torch.randn((2, length, kv_heads, head_dim), generator=random).to(dtype)
    starts = torch.tensor(np.cumsum([0, *(queries for queries, _ in rows)]), dtype=torch.int32)
    query = torch.randn((int(starts[-1]), heads, head_dim), generator=random).to(dtype)
    lengths = torch.tensor([length for _, length in rows], dtype=torch.int32)
    pages = Pages(tables.to(device()), table_starts.to(device()), lengths.to(device()), block_size)
    return Batch(query.to(device()), kv.to(device()), pages, starts.to(device()))


def attend(of: Batch, *, window: int | None = None, config: Config | None = SMALL, out: Tensor | None = None, spare: int = 0) -> Tensor:
    """Run the op. `spare`: how much longer the work list is than its tiles need."""
    chosen = config or choose_config(of.query.shape[2], of.query.dtype)
    work = prefill_work(of.starts.cpu().numpy(), query_tile(of.query.shape[1], of.kv.shape[2], chosen))
    work = torch.from_numpy(np.concatenate([work, np.full(spare, -1, np.int32)])).to(device())
    return paged_attention_prefill(of.query, of.kv, of.pages, of.starts, work, scales=of.scales, window=window, out=out, config=config)


def quantised(of: Batch, kind: torch.dtype) -> Batch:
    """In 8 bits: NaN where a byte can say it, and NaN scales, in every slot that holds no token."""
    kv, scales = quantise(of.kv.nan_to_num(nan=1.0), kind, of.pages.block_size)
    unread = of.kv[..., :1].isnan()
    if kind == torch.float8_e4m3fn:
        kv = kv.view(torch.uint8).masked_fill(unread, 0x7F).view(kind)
    blank = unread[..., 0].unflatten(1, (-1, of.pages.block_size)).transpose(2, 3)
    return replace(of, kv=kv, scales=scales.masked_fill(blank, torch.nan).contiguous())


def check_quantised(of: Batch, kind: torch.dtype, config: Config, window: int | None = None) -> None:
    """Beside what the bytes stand for, and beside what was there before."""
    of = replace(of, query=of.query / 2)  # e4m3 keeps 2.4 % of keys and of values: with scores of variance 1 that is 3.3 % of the result
    narrow = quantised(of, kind)
    out = attend(narrow, window=window, config=config)
    assert narrow.scales is not None
    stands_for = dequantise(narrow.kv, narrow.scales)
    assert_close(out, paged_attention(of.query, stands_for, of.pages, of.starts, window), "dequantised")
    assert_close(out, paged_attention(of.query, of.kv, of.pages, of.starts, window), "fp8_kv")


def check(of: Batch, *, window: int | None = None, config: Config | None = SMALL) -> None:
    reference = paged_attention(of.query, of.kv, of.pages, of.starts, window)
    assert_close(attend(of, window=window, config=config), reference, KIND_OF[of.query.dtype])


@pytest.mark.parametrize(("heads", "kv_heads", "block_size"), [(2, 2, 16), (4, 2, 32), (4, 1, 64), (7, 1, 16), (8, 1, 32)])
def test_rows_of_mixed_sizes(heads: int, kv_heads: int, block_size: int) -> None:
    check(batch(MIXED, heads, kv_heads, block_size=block_size), config=LONGER if block_size == 64 else SMALL)


@pytest.mark.parametrize("config", FORMS)
@pytest.mark.parametrize("window", [None, 40])
def test_each_form(config: Config, window: int | None) -> None:
    check(batch([*MIXED, (40, 200)], 4, 2, block_size=64), window=window, config=config)


@pytest.mark.parametrize("config", FORMS)
def test_each_form_gives_the_same_bits_in_chunks(config: Config) -> None:
    whole = batch([(150, 150)], block_size=64)
    pages = replace(whole.pages, lengths=torch.tensor([141], dtype=torch.int32, device=device()))
    chunk = Batch(whole.query[60:141], whole.kv, pages, torch.tensor([0, 81], dtype=torch.int32, device=device()))
    assert torch.equal(attend(chunk, config=config), attend(whole, config=config)[60:141])


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float32, 64), (torch.float16, 128), (torch.bfloat16, 128), (torch.bfloat16, 256)])
def test_the_tiles_that_serve(dtype: torch.dtype, head_dim: int) -> None:
    check(batch([(50, 130), (1, 65)], 7, 1, head_dim=head_dim, dtype=dtype), config=None)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize(("config", "block_size", "window"), [(SMALL, 16, None), (SMALL, 16, 40), (SMALL, 64, None), (FORMS[1], 64, 40)])
def test_eight_bits(kind: torch.dtype, config: Config, block_size: int, window: int | None) -> None:
    check_quantised(batch(MIXED, 4, 2, block_size=block_size), kind, config, window)


@pytest.mark.parametrize("block_size", [16, 64])
def test_the_tiles_that_serve_eight_bits(block_size: int) -> None:
    check_quantised(batch([(40, 70)], 7, 1, head_dim=128, block_size=block_size), torch.int8, quantised_config(128))


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 64, 65])
def test_lengths_around_the_edges_of_tiles_and_blocks(length: int) -> None:
    check(batch([(length, length), (1, length), (min(16, length), length)], 2, 1))


@pytest.mark.parametrize("window", [1, 2, 31, 32, 33, 64, 1000])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    check(batch([(70, 70), (1, 100), (20, 90), (2, 0)]), window=window)


@settings(deadline=None, max_examples=12)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 60)), min_size=1, max_size=4),
    st.sampled_from([(3, 1), (4, 4), (5, 1), (16, 1)]),
    st.none() | st.integers(1, 70),
)
def test_any_rows(rows: list[tuple[int, int]], heads: tuple[int, int], window: int | None) -> None:
    check(batch([(queries, queries + before) for queries, before in rows], *heads, dtype=torch.float16), window=window)


def test_blocks_in_another_order_give_the_same_bits() -> None:
    of = batch(MIXED)
    blocks = of.kv.shape[1] // 16
    order = torch.randperm(blocks, generator=torch.Generator().manual_seed(5)).to(device())
    moved = torch.empty_like(of.kv).view(2, blocks, 16, *of.kv.shape[2:])
    moved[:, order] = of.kv.view(moved.shape)
    pages = replace(of.pages, tables=order[of.pages.tables.long()].int())
    assert torch.equal(attend(replace(of, kv=moved.view(of.kv.shape), pages=pages)), attend(of))


def test_a_prompt_in_chunks_gives_the_bits_of_the_whole() -> None:
    whole = batch([(90, 90)])
    expected = attend(whole)
    for first, last in ((0, 1), (1, 41), (41, 90)):
        pages = replace(whole.pages, lengths=torch.tensor([last], dtype=torch.int32, device=device()))
        chunk = Batch(whole.query[first:last], whole.kv, pages, torch.tensor([0, last - first], dtype=torch.int32, device=device()))
        assert torch.equal(attend(chunk), expected[first:last])
        assert torch.equal(attend(chunk, window=30), attend(whole, window=30)[first:last])


def test_a_row_alone_gives_its_bits_of_the_batch() -> None:
    of = batch(MIXED)
    together = attend(of)
    starts = of.starts.tolist()
    for row, (queries, _) in enumerate(MIXED):
        pages = replace(of.pages, table_starts=of.pages.table_starts[row : row + 1], lengths=of.pages.lengths[row : row + 1])
        alone = Batch(of.query[starts[row] : starts[row + 1]], of.kv, pages, torch.tensor([0, queries], dtype=torch.int32, device=device()))
        assert torch.equal(attend(alone), together[starts[row] : starts[row + 1]])


def test_what_lies_behind_the_length_is_not_seen() -> None:
    of = batch(MIXED)
    assert of.kv.isnan().any()
    assert torch.equal(attend(of), attend(replace(of, kv=of.kv.nan_to_num(nan=1e4))))


def test_padding_rows_are_zeros_and_tokens_of_no_row_are_left_alone() -> None:
    of = batch([(5, 20), (3, 0)])
    query = torch.cat([of.query, of.query[:4] * torch.nan])
    out = attend(replace(of, query=query), out=torch.full_like(query, 7.0), spare=10)
    assert out[:5].isfinite().all()
    assert not out[5:8].any()
    assert (out[8:] == 7.0).all()


def test_a_work_list_may_be_longer_than_its_tiles() -> None:
    of = batch(MIXED)
    assert torch.equal(attend(of, spare=9), attend(of))


def test_without_queries_nothing_is_done() -> None:
    assert attend(batch([(0, 0), (0, 20)])).shape == (0, 2, 32)


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 20), st.booleans())
def test_work_covers_each_query_once_longest_first(queries: list[int], tile: int, known: bool) -> None:
    starts = np.cumsum([0, *queries]).astype(np.int32)
    lengths = np.array([count * 3 + row for row, count in enumerate(queries)], np.int32)
    work = prefill_work(starts, tile, lengths if known else None)
    count, row, first = int(work[0]), *np.split(work[1:], 2)
    assert work.dtype == np.int32
    assert len(row) == len(first) == count
    covered = [
        (of, at) for of, start in zip(row.tolist(), first.tolist(), strict=True) for at in range(start, min(start + tile, queries[of]))
    ]
    assert sorted(covered) == [(of, at) for of, count in enumerate(queries) for at in range(count)]
    reach = [start + (lengths[of] - queries[of] if known else 0) for of, start in zip(row, first, strict=True)]
    assert reach == sorted(reach, reverse=True)


def test_what_it_does_not_take_is_refused() -> None:
    of = batch([(5, 20)])
    with pytest.raises(ValueError, match="window"):
        attend(of, window=0)
    with pytest.raises(ValueError, match="dtype"):
        attend(replace(of, kv=of.kv.float()))
    with pytest.raises(ValueError, match="no scales"):
        attend(replace(quantised(of, torch.int8), scales=None))
    with pytest.raises(ValueError, match="does not fit"):
        attend(replace(of, query=of.query[..., :16].contiguous()))
    with pytest.raises(ValueError, match="contiguous"):
        attend(replace(of, query=of.query.transpose(0, 1).contiguous().transpose(0, 1)))
    with pytest.raises(ValueError, match="head_dim"):
        attend(batch([(5, 20)], head_dim=48))
    with pytest.raises(ValueError, match="starts"):
        attend(replace(of, starts=of.starts[:1]))
    with pytest.raises(ValueError, match="whole blocks"):
        attend(batch([(5, 20)], block_size=64), config=replace(SMALL, block_n=48))
    with pytest.raises(ValueError, match="at least one"):
        prefill_work(np.array([0, 4], np.int32), 0)


@pytest.mark.skipif(device().type == "cpu", reason="an 8 GiB cache: on a GPU only")
def test_a_cache_of_more_than_2_31_elements() -> None:
    of = batch([(40, 100)], head_dim=128, block_size=64)
    far = 2**31 // (128 * 64) + 1
    kv = torch.empty((2, (far + 8) * 64, 1, 128), dtype=of.kv.dtype, device=device())
    kv[:, far * 64 : far * 64 + of.kv.shape[1]] = of.kv
    moved = replace(of, kv=kv, pages=replace(of.pages, tables=of.pages.tables + far))
    assert torch.equal(attend(moved, config=LONGER), attend(of, config=LONGER))
