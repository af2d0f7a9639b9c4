"""Copies of blocks: exact, in every layer, all sources read before anything is written."""

import pytest
import torch
from pagoda_kernels.gpu.copy_blocks import copy_blocks
from pagoda_kernels.reference.copy_blocks import copy_blocks as judged
from pagoda_kernels.testing import device

PAIRS = {
    "one": [(3, 1)],
    "swapped": [(0, 4), (4, 0)],
    "a chain backwards": [(1, 2), (2, 3), (0, 1)],
    "a chain forwards": [(0, 1), (1, 2), (2, 3)],
    "one source twice": [(4, 0), (4, 2)],
    "onto itself": [(2, 2)],
    "none": [],
}


def pool(shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).to(device())


def copied(kv, pairs, block_size):
    copy_blocks(kv, torch.tensor(pairs, dtype=torch.int32).view(-1, 2).to(device()), block_size)
    return kv


@pytest.mark.parametrize(
    ("pairs", "dtype"), [*((name, torch.bfloat16) for name in PAIRS), ("swapped", torch.float32), ("swapped", torch.float16)]
)
def test_blocks_are_copied_as_they_were(pairs, dtype):
    kv = pool((3, 2, 5 * 4, 2, 6), dtype)
    expected = judged(kv, torch.tensor(PAIRS[pairs]).view(-1, 2), 4)
    assert torch.equal(copied(kv, PAIRS[pairs], 4), expected)


@pytest.mark.parametrize(("block_size", "kv_heads", "dim"), [(1, 1, 2), (16, 2, 160), (32, 3, 64), (64, 1, 64)])
def test_blocks_of_any_size(block_size, kv_heads, dim):
    kv = pool((1, 2, 5 * block_size, kv_heads, dim), torch.bfloat16)
    expected = judged(kv, torch.tensor(PAIRS["swapped"]), block_size)
    assert torch.equal(copied(kv, PAIRS["swapped"], block_size), expected)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_scales_go_with_their_block(dtype):
    kv, scales = pool((3, 2, 5 * 4, 2, 6), dtype), pool((3, 2, 5, 2, 4), torch.float32)
    pairs = torch.tensor(PAIRS["swapped"], dtype=torch.int32)
    expected, in_bytes = scales[:, :, [4, 1, 2, 3, 0]], judged(kv.view(torch.uint8), pairs, 4)
    copy_blocks(kv, pairs.to(device()), 4, scales)
    assert torch.equal(scales, expected)
    assert torch.equal(kv.view(torch.uint8), in_bytes)


@pytest.mark.skipif(device().type == "cpu", reason="takes 8 GiB, of which the interpreter would keep a record per byte")
def test_a_pool_of_more_than_two_to_the_31_elements():
    kv = torch.empty(2, 2, 2**20 + 16, 8, 128, dtype=torch.bfloat16, device=device())
    kv[:, :, :16] = pool((2, 2, 16, 8, 128), torch.bfloat16)
    copied(kv, [(0, 2**16)], 16)
    assert torch.equal(kv[:, :, 2**20 :], kv[:, :, :16])


@pytest.mark.parametrize(
    ("slots", "step", "pairs", "told"),
    [
        (10, 1, torch.zeros(1, 2, dtype=torch.int32), "whole blocks of 4"),
        (8, 1, torch.zeros(1, 2, dtype=torch.int64), "int32"),
        (8, 1, torch.zeros(2, dtype=torch.int32), "shape"),
        (16, 2, torch.zeros(1, 2, dtype=torch.int32), "strides"),
    ],
    ids=["slots", "dtype", "pairs", "strided"],
)
def test_what_the_kernel_could_not_read_is_refused(slots, step, pairs, told):
    kv = torch.zeros(2, 2, slots, 1, 2, device=device())[:, :, ::step]
    with pytest.raises(ValueError, match=told):
        copy_blocks(kv, pairs.to(device()), 4)
