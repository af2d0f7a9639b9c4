"""Packing: what comes out is what went in, in another order."""

from pathlib import Path

import pytest
import torch
from pagoda_kernels.cpu.pack import BF16, INT8, PANEL, Arena, forget, interleave, pack, packed_bytes, unpack


def matrix(outputs, inputs, seed=0):
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize("outputs", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("inputs", [32, 96])
def test_a_packed_matrix_unpacks_to_itself(outputs, inputs):
    weight = matrix(outputs, inputs)
    packed = pack(weight, None, BF16, Arena(packed_bytes(outputs, inputs, BF16)))
    assert torch.equal(unpack(packed), weight)


def test_an_element_stands_where_the_native_code_reads_it():
    packed = pack(matrix(130, 32), None, BF16, Arena(packed_bytes(130, 32, BF16)))
    assert packed.weight[129 // PANEL, 7 // 2, 129 % PANEL, 7 % 2] == matrix(130, 32)[129, 7]


@pytest.mark.parametrize("outputs", [64, 130])
def test_eight_bits_are_off_by_half_a_step_at_most(outputs):
    weight = matrix(outputs, 96)
    packed = pack(weight, None, INT8, Arena(packed_bytes(outputs, 96, INT8)))
    step = (weight.float().reshape(outputs, 3, 32).abs().amax(dim=2) / 127).repeat_interleave(32, dim=1)
    # The step itself is rounded up by less than 2^-7.
    assert ((unpack(packed) - weight.float()).abs() <= step * 0.504).all()


def test_a_matrix_of_zeros_stays_zeros():
    packed = pack(torch.zeros(4, 32, dtype=torch.bfloat16), None, INT8, Arena(packed_bytes(4, 32, INT8)))
    assert torch.equal(unpack(packed), torch.zeros(4, 32))


def test_gate_and_up_share_each_panel():
    gate, up = matrix(64, 16), matrix(64, 16, seed=1)
    mixed = interleave(gate, up)
    assert torch.equal(mixed[:32], gate[:32])
    assert torch.equal(mixed[32:64], up[:32])
    assert torch.equal(mixed[64:96], gate[32:])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pack(matrix(4, 48), None, BF16, Arena(4096)), "inputs to be packed, got 48"),
        (lambda: interleave(matrix(33, 16), matrix(33, 16)), "outputs to be packed, got 33"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_its_size(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_an_arena_refuses_more_than_it_has():
    arena = Arena(8192)
    arena.take((1000,), torch.int8)
    with pytest.raises(MemoryError, match="of 8192 bytes"):
        arena.take((8192,), torch.int8)


def test_parts_of_an_arena_begin_on_cache_lines():
    arena = Arena(4096)
    first, second = arena.take((3,), torch.int8), arena.take((2, 2), torch.float32)
    assert (second.data_ptr() - first.data_ptr()) == 64
    assert first.data_ptr() % 64 == 0


def test_a_dropped_weight_is_no_longer_in_memory():
    size = 64 * 2**20
    held = torch.ones(size, dtype=torch.uint8)
    held.numpy()  # from here on torch itself refuses to give the memory back
    before = resident()
    forget(held)
    assert before - resident() > size * 0.9


def test_dropping_a_weight_leaves_its_neighbours_unchanged():
    whole = torch.ones(10 * 4096, dtype=torch.uint8)
    forget(whole[5000:20000])
    assert whole[:5000].all()
    assert whole[20000:].all()


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_an_arena_is_memory_that_may_have_huge_pages():
    """Shared memory, which Python maps unless it is told otherwise, gets none on most machines."""
    arena = Arena(4 << 20)
    at = arena.take((4 << 20,), torch.uint8).data_ptr()
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (flags,) = [line[1] for line in lines if int(line[0].split("-")[0], 16) <= at < int(line[0].split("-")[1], 16)]
    assert flags == "rw-p"
