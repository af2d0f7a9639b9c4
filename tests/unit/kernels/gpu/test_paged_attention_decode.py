"""Decode attention against its float64 reference, and what must not change a bit of a row: its batch, its pages, what lies beside it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_kernels.gpu.paged_attention_decode import ALIGN, LONG, Config, DecodeScratch, decode_config, decode_work, paged_attention_decode
from pagoda_kernels.gpu.pages import Pages
from pagoda_kernels.reference import paged_attention as reference
from pagoda_kernels.reference.quantise import dequantise, quantise
from pagoda_kernels.testing import KIND_OF, assert_close, device

pytestmark = pytest.mark.deep  # seconds of Triton's interpreter

KINDS = [torch.float8_e4m3fn, torch.int8]
SMALL = Config(tile=32, stages=2, split=64)  # splits of 64 tokens: several of them in few tokens
LENGTHS = [0, 1, 15, 16, 17, 63, 64, 65, 130, 200]


class Case:
    """A random batch: rows of the given lengths on shuffled pages of a cache in which every slot that no row owns is NaN, block 0 too."""

    scales = None

    def __init__(self, lengths, *, heads=8, kv_heads=2, head_dim=32, block_size=16, dtype=torch.bfloat16, seed=0):
        chance = torch.Generator().manual_seed(seed)
        self.lengths = lengths
        counts = [-(-length // block_size) for length in lengths]
        starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
        self.ids = torch.randperm(sum(counts), generator=chance).int() + 1
        self.pages = Pages(self.ids.to(device()), int32(starts), int32(lengths), block_size)
        kv = torch.randn(2, (sum(counts) + 2) * block_size, kv_heads, head_dim, generator=chance).to(dtype)
        self.kv = self.poisoned(kv.to(device()))
        self.query = torch.randn(len(lengths), heads, head_dim, generator=chance).to(dtype).to(device())

    def poisoned(self, kv, window=None):
        """NaN in every slot that no row may read."""
        seen = torch.zeros(kv.shape[1], dtype=torch.bool, device=kv.device)
        for row, length in enumerate(self.lengths):
            seen[reference.row_slots(self.pages, row)[0 if window is None else max(length - window, 0) :]] = True
        return kv.masked_fill(~seen[None, :, None, None], torch.nan)

    def quantised(self, kind):
        """The same batch in 8 bits: NaN where a byte can say it, and NaN scales, wherever no row reads."""
        whole = self.kv.nan_to_num(nan=1.0)
        kv, self.scales = quantise(whole, kind, self.pages.block_size)
        unread = self.kv[..., :1].isnan()
        if kind == torch.float8_e4m3fn:
            kv = kv.view(torch.uint8).masked_fill(unread, 0x7F).view(kind)
        blank = unread[..., 0].unflatten(1, (-1, self.pages.block_size)).transpose(2, 3).expand(self.scales.shape)
        self.scales = self.scales.masked_fill(blank, torch.nan).contiguous()
        self.unquantised, self.kv = self.kv, kv
        self.query = self.query / 2  # e4m3 keeps 2.4 % of keys and of values: with scores of variance 1 that is 3.3 % of the result
        return self

    def run(self, config=SMALL, window=None, out=None):
        work = decode_work(np.array(self.lengths, np.int32), window, config.split)
        scratch = DecodeScratch.of(max(int(work[0]), 1), *self.query.shape[1:], device())
        call = {"window": window, "out": out, "config": config, "scales": self.scales}
        return paged_attention_decode(self.query, self.kv, self.pages, int32(work), scratch, **call)

    def check_quantised(self, config=SMALL, window=None):
        """Beside what the bytes stand for, and beside what was there before."""
        out, query = self.run(config, window), self.query
        stands_for = dequantise(self.kv, self.scales)
        assert_close(out, reference.paged_attention_decode(query, stands_for, self.pages, window), "dequantised")
        assert_close(out, reference.paged_attention_decode(query, self.unquantised, self.pages, window), "fp8_kv")

    def check(self, config=SMALL, window=None):
        expected = reference.paged_attention_decode(self.query, self.kv, self.pages, window)
        assert_close(self.run(config, window), expected, KIND_OF[self.query.dtype])


def int32(values):
    return torch.tensor(np.asarray(values, np.int32)).to(device())


@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 20])
def test_groups(group):
    Case([130, 0, 17, 64], heads=2 * group).check()


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_block_sizes(block_size):
    Case([130, 0, 17, 64], block_size=block_size).check()


def test_no_rows():
    assert Case([]).run().shape == (0, 8, 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lengths_about_blocks_and_splits(dtype):
    Case(LENGTHS, kv_heads=1, heads=2, dtype=dtype).check()


@pytest.mark.parametrize("head_dim", [64, 80, 96])
def test_head_dims(head_dim):
    Case([70, 3], kv_heads=1, heads=2, head_dim=head_dim).check(Config(split=64))


@pytest.mark.parametrize("config", [Config(split=64), Config(tile=128, split=128), Config(tile=32, split=192), Config(tile=16, split=128)])
@pytest.mark.parametrize("block_size", [16, 64])
def test_tiles_and_splits(config, block_size):
    Case([200, 128, 33], kv_heads=1, heads=4, block_size=block_size).check(config)


@pytest.mark.parametrize("window", [1, 16, 63, 64, 65, 100, 1000])
@pytest.mark.parametrize("block_size", [16, 64])
def test_a_window_hides_what_is_before_it(window, block_size):
    case = Case([0, 1, 64, 65, 200], kv_heads=1, heads=2, block_size=block_size)
    case.kv = case.poisoned(case.kv, window)
    case.check(window=window)


def test_more_items_than_one_step_of_the_merge():
    case = Case([128 * 33 + 5], kv_heads=1, heads=1, head_dim=16)  # 34 items: of 128 tokens, as there would be more than LONG of 64
    case.kv[0, reference.row_slots(case.pages, 0)[-1]] = 3 * case.query[0]  # what is merged last weighs most
    case.check(Config(split=64))


@pytest.mark.parametrize(("head_dim", "dtype"), [(32, torch.bfloat16), (128, torch.float16), (128, torch.float32)])
@pytest.mark.parametrize("amd", [False, True])
def test_the_configurations_in_use(head_dim, dtype, amd):
    case = Case([300, 5], kv_heads=1, heads=2, head_dim=head_dim, dtype=dtype)
    case.check(decode_config(head_dim, dtype.itemsize, amd=amd))


@pytest.mark.skipif(device().type == "cpu" or torch.cuda.get_device_capability() < (9, 0), reason="a launch of devices from sm_90 on")
def test_a_merge_launched_early_waits():
    for seed in range(20):
        case = Case([64 * 70, 200, 0, 5], seed=seed)
        assert torch.equal(case.run(), case.run(replace(SMALL, early=True)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("lengths", "heads", "head_dim", "block_size"), [(LENGTHS, 2, 32, 16), ([70, 3], 14, 96, 32), ([130, 65], 4, 64, 64)]
)
def test_eight_bits(kind, lengths, heads, head_dim, block_size):
    Case(lengths, heads=heads, head_dim=head_dim, block_size=block_size).quantised(kind).check_quantised()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_size", [16, 64])
def test_eight_bits_with_a_window(kind, block_size):
    case = Case([0, 1, 64, 65, 200], kv_heads=1, heads=2, block_size=block_size)
    case.kv = case.poisoned(case.kv, 63)
    case.quantised(kind).check_quantised(window=63)


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_in_use_for_eight_bits(kind):
    Case([600, 5], kv_heads=1, heads=2, head_dim=128, dtype=torch.float16).quantised(kind).check_quantised(decode_config(128, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1e-4, 1e3])
def test_small_and_large_values_keep_their_precision_in_eight_bits(kind, size):
    """float16 ends at 65504, and its normal numbers begin at 6e-5: what a weight of 1e-4 leaves of a small value is below."""
    case = Case([200], kv_heads=1, heads=2)
    case.kv[1] *= size
    case.quantised(kind).check_quantised()


def test_a_row_in_eight_bits_gives_the_same_bits_in_any_batch():
    case = Case([200, 17, 0, 64, 129]).quantised(torch.float8_e4m3fn)
    whole = case.run()
    for row, length in enumerate(case.lengths):
        alone = Case([length])
        alone.query, alone.kv, alone.scales = case.query[row : row + 1], case.kv, case.scales
        alone.pages = Pages(case.pages.tables, case.pages.table_starts[row : row + 1], case.pages.lengths[row : row + 1], 16)
        assert torch.equal(whole[row], alone.run()[0])


def test_large_scores_do_not_overflow():
    case = Case([100], kv_heads=1, heads=2)
    case.query = case.query * 100
    case.check()


@pytest.mark.parametrize("window", [None, 70])
def test_pages_in_another_order_give_the_same_bits(window):
    case = Case([130, 40])
    before = case.run(window=window)
    blocks = case.kv.unflatten(1, (-1, 16))
    order = torch.randperm(blocks.shape[1], generator=torch.Generator().manual_seed(1))
    moved = torch.empty_like(blocks)
    moved[:, order.to(device())] = blocks
    case.kv = moved.flatten(1, 2)
    case.pages = Pages(order[case.ids.long()].int().to(device()), case.pages.table_starts, case.pages.lengths, 16)
    assert torch.equal(before, case.run(window=window))


@pytest.mark.parametrize("window", [None, 70])
def test_a_row_gives_the_same_bits_in_any_batch(window):
    case = Case([200, 17, 0, 64, 129])
    whole = case.run(window=window)
    for row, length in enumerate(case.lengths):
        alone = Case([length])
        alone.query, alone.kv = case.query[row : row + 1], case.kv
        alone.pages = Pages(case.pages.tables, case.pages.table_starts[row : row + 1], case.pages.lengths[row : row + 1], 16)
        assert torch.equal(whole[row], alone.run(window=window)[0])


def test_rows_of_length_zero_give_zeros_and_the_result_goes_into_out():
    case = Case([0, 20, 0])
    out = torch.full_like(case.query, torch.nan)
    assert case.run(out=out) is out
    assert not out[0].any()
    assert not out[2].any()
    assert out[1].isfinite().all()


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # from the interpreter
def test_a_nan_stays_in_its_row():
    case = Case([20, 130, 40])
    case.query[:2] = torch.nan  # a row of one item, and one of several
    out = case.run()
    assert out[:2].isnan().all()
    assert out[2].isfinite().all()


def test_buffers_longer_than_the_batch_needs():
    """As in a captured graph: work list, tables and scratch of the largest batch, their tails from earlier steps."""
    case = Case([130, 5])
    expected = case.run()
    work = decode_work(np.array(case.lengths, np.int32), None, SMALL.split)
    scratch = DecodeScratch.of(50, *case.query.shape[1:], device())
    scratch.partial.fill_(torch.nan)
    scratch.sums.fill_(torch.nan)
    work = int32(np.concatenate([work, np.full(40, 2**31 - 1)]))
    assert torch.equal(expected, paged_attention_decode(case.query, case.kv, case.pages, work, scratch, config=SMALL))


def test_slots_beyond_two_to_the_31_elements():
    blocks, kv_heads, head_dim = 2**18, 8, 64  # 2^31 elements of keys, as many of values; only the last block is ever touched
    kv = torch.empty(2, (blocks + 1) * 16, kv_heads, head_dim, dtype=torch.float16, device=device())
    case = Case([16], heads=8, kv_heads=kv_heads, head_dim=head_dim, dtype=torch.float16)
    kv[:, blocks * 16 :] = case.kv[:, reference.row_slots(case.pages, 0)]
    expected = case.run()
    case.kv, case.pages = kv, Pages(int32([blocks]), case.pages.table_starts, case.pages.lengths, 16)
    assert torch.equal(expected, case.run())


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9000), max_size=8), st.none() | st.integers(1, 2000), st.sampled_from([ALIGN, 4 * ALIGN, 5 * ALIGN]),
)  # fmt: skip
def test_work_holds_every_visible_token_once(lengths, window, split):
    work = decode_work(np.array(lengths, np.int32), window, split)
    items, rows = int(work[0]), len(lengths)
    first, row_of_item = work[1 : rows + 2], work[rows + 2 :]
    assert work.dtype == np.int32
    assert len(row_of_item) == items == first[-1]
    for row, length in enumerate(lengths):
        mine = np.flatnonzero(row_of_item == row)
        assert list(mine) == list(range(first[row], first[row + 1]))
        low = 0 if window is None else max(length - window, 0)
        begin = low // ALIGN * ALIGN
        size = 2 * split if length - begin > LONG * split else split
        tokens = [begin + n * size for n in range(len(mine) + 1)]  # borders of the items
        assert low - ALIGN < tokens[0] <= low
        assert tokens[-1] >= length
        assert not len(mine) or tokens[-2] < length


def test_refusals():
    case = Case([20])
    for split in (0, 100, -64):
        with pytest.raises(ValueError, match="split must be"):
            decode_work(np.array([1], np.int32), None, split)
    with pytest.raises(ValueError, match="split must be"):
        Config(tile=128, split=64)
    with pytest.raises(ValueError, match="block_size must be"):
        Pages(case.pages.tables, case.pages.table_starts, case.pages.lengths, 48)
    with pytest.raises(ValueError, match="table_starts has"):
        Pages(case.pages.tables, case.pages.tables, case.pages.lengths, 16)
    with pytest.raises(ValueError, match="lengths must be"):
        Pages(case.pages.tables, case.pages.table_starts, case.pages.lengths.long(), 16)
    scratch = DecodeScratch.of(1, *case.query.shape[1:], device())
    work = int32(decode_work(np.array([20], np.int32), None, SMALL.split))
    with pytest.raises(ValueError, match="kv must be"):
        paged_attention_decode(case.query, case.kv[:, :, :, :8].contiguous(), case.pages, work, scratch)
    with pytest.raises(ValueError, match="of one dtype"):
        paged_attention_decode(case.query.half(), case.kv, case.pages, work, scratch)
    with pytest.raises(ValueError, match="the pages 1 rows"):
        paged_attention_decode(case.query.repeat(2, 1, 1), case.kv, case.pages, work, scratch)
    eight = Case([20]).quantised(torch.int8)
    for change in ({"scales": None}, {"query": eight.query.float()}, {"kv": eight.kv.float()}, {"scales": eight.scales[:, :1]}):
        wrong = Case([20])
        vars(wrong).update(vars(eight) | change)
        with pytest.raises(ValueError, match=r"of one dtype|expected a contiguous"):
            wrong.run()
