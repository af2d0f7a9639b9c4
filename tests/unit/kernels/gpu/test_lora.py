"""What adapters add to rows beside float64 and beside torch, whatever is mixed in a step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pagoda_kernels.gpu.lora import lora_add, lora_config, lora_expand, lora_shrink
from pagoda_kernels.gpu.lora_pool import (
    MODULES,
    NARROW,
    PARTS,
    RANKS,
    WIDE,
    LoraPlace,
    LoraPool,
    LoraRows,
    lora_tile,
    lora_tiles,
    pack_lora,
)
from pagoda_kernels.reference.lora import lora_add as judged
from pagoda_kernels.testing import KIND_OF, assert_close, device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SIZES = {"qkv": (40, (33, 16, 16)), "output": (33, (40,)), "gate_up": (40, (24, 24)), "down": (24, (40,))}
"""Inputs, and the outputs of each module: odd ones among them."""


def adapter(rank, seed=0, dtype=torch.float32, layers=2, sizes=SIZES):
    """Of two layers: [layer][module] pairs; `rank(layer, module)` 0: not changed."""
    random = torch.Generator().manual_seed(seed)

    def pair(layer, module):
        part = next(name for name, (begin, end) in PARTS.items() if begin <= module < end)
        inputs, outputs = sizes[part][0], sizes[part][1][module - PARTS[part][0]]
        if not (ranks := rank(layer, module)):
            return None
        a, b = torch.randn(ranks, inputs, generator=random), torch.randn(outputs, ranks, generator=random)
        return (a * inputs**-0.5).to(dtype), (b * ranks**-0.5).to(dtype)

    return [[pair(layer, module) for module in range(MODULES)] for layer in range(layers)]


def pool_of(adapters, dtype, rank):
    """By slot; between and behind them all is NaN, and so is what no slot has."""
    packed = {slot: pack_lora(layers, torch.empty(0, dtype=dtype)) for slot, layers in adapters.items()}
    weights = torch.full((sum(one.weights.numel() + 48 for one in packed.values()) + 48,), torch.nan, dtype=dtype)
    places = torch.full((max(packed) + 2, 2, MODULES, 4), -(2**40), dtype=torch.int64)
    at = 32
    for slot, one in packed.items():
        weights[at : at + one.weights.numel()] = one.weights
        places[slot] = one.places
        places[slot, ..., :2] += at
        at += one.weights.numel() + 48
    return LoraPool(weights.to(device()), places.to(device()), rank)


def rows_of(slots, tile=None, room=0):
    """`room`: tiles for which the list has room beside those that it has, as where it is captured."""
    slots = np.asarray(slots, np.int32)
    tile = tile or lora_tile(slots)
    order, tiles = lora_tiles(slots, tile)
    tiles = np.concatenate((tiles, np.full(3 * room, -1, np.int32)))
    return LoraRows(torch.from_numpy(order).to(device()), torch.from_numpy(tiles).to(device()), tile)


def inputs(tokens, part, dtype, seed=0):
    random = torch.Generator().manual_seed(seed)
    width, outputs = SIZES[part]
    hidden, out = (torch.randn(tokens, size, generator=random).to(dtype).to(device()) for size in (width, sum(outputs)))
    return out, hidden


def place_of(part, layer=1):
    return LoraPlace(layer, PARTS[part][0], SIZES[part][1])


def right(out, hidden, slots, adapters, part, dtype=torch.float64):
    begin, end = PARTS[part]
    mine = {slot: layers[1][begin:end] for slot, layers in adapters.items()}
    return judged(out.cpu(), hidden.cpu(), slots, mine, SIZES[part][1], dtype)


SMALL = replace(lora_config(NARROW, 4), splits=2, block_k=16, block_n=32)
RANK_OF = {
    "more than a program takes at once": lambda *_: 70,
    "one": lambda *_: 1,
    "sixteen": lambda *_: 16,
    "some modules": lambda _, module: (7, 0, 20, 17, 0, 3, 0)[module],
}


@pytest.mark.parametrize(
    ("part", "rank"),
    [
        pytest.param(part, rank, id=f"{part}, {name}", marks=() if name == "some modules" and part in ("qkv", "down") else pytest.mark.deep)
        for part in SIZES
        for name, rank in RANK_OF.items()
    ],
)
def test_rows_get_what_their_adapter_makes_of_them_and_the_others_nothing(part, rank):
    adapters = {1: adapter(rank), 3: adapter(rank, seed=1)}
    slots = [3, 0, 1, 3, 0]
    out, hidden = inputs(5, part, torch.float32)
    expected = right(out, hidden, slots, adapters, part)
    before, pool = out.clone(), pool_of(adapters, torch.float32, 80 if rank(0, 0) == 70 else 32)
    assert lora_add(out, hidden, rows_of(slots, room=2), pool, place_of(part), config=SMALL) is out
    assert_close(out, expected, "fp32")
    assert torch.equal(out[[1, 4]], before[[1, 4]])


@pytest.mark.parametrize(
    ("dtype", "tile"),
    [
        pytest.param(one, tile, marks=() if (one, tile) == (torch.bfloat16, NARROW) else pytest.mark.deep)
        for one in DTYPES
        for tile in (NARROW, WIDE)
    ],
)
def test_both_products_and_the_sum_are_rounded_as_torch_does(dtype, tile):
    slots = [2] * 18 + [0] + [1]
    adapters = {1: adapter(lambda *_: 5, dtype=dtype), 2: adapter(lambda *_: 16, 1, dtype)}
    out, hidden = inputs(len(slots), "qkv", dtype)
    expected, baseline = (right(out, hidden, slots, adapters, "qkv", kind) for kind in (torch.float64, dtype))
    config = replace(lora_config(tile, 2), splits=2, block_k=32)
    lora_add(out, hidden, rows_of(slots, tile), pool_of(adapters, dtype, RANKS), place_of("qkv"), config=config)
    assert_close(out, expected, KIND_OF[dtype], baseline)
    if dtype != torch.float32:
        assert (out.cpu() == baseline).float().mean() > 0.95


def test_a_row_has_the_same_bits_in_any_batch_and_any_slot():
    alone, shared = {1: adapter(lambda *_: 20)}, {1: adapter(lambda *_: 3, 5), 2: adapter(lambda *_: 20)}
    out, hidden = inputs(6, "gate_up", torch.bfloat16)
    one = lora_add(out[4:5].clone(), hidden[4:5], rows_of([1]), pool_of(alone, torch.bfloat16, 32), place_of("gate_up"), config=SMALL)
    lora_add(out, hidden, rows_of([2, 1, 0, 2, 2, 1], room=3), pool_of(shared, torch.bfloat16, 32), place_of("gate_up"), config=SMALL)
    assert torch.equal(out[4:5], one)


@pytest.mark.parametrize("slots", [[], [0, 0, 0]])
def test_where_no_row_has_an_adapter_nothing_happens(slots):
    out, hidden = inputs(len(slots), "down", torch.float32)
    before, pool = out.clone(), pool_of({1: adapter(lambda *_: 2)}, torch.float32, RANKS)
    rows = rows_of(slots, room=1)
    lora_add(out, hidden, rows, pool, place_of("down"), config=SMALL)
    captured = replace(rows, tokens=torch.zeros(3, dtype=torch.int32, device=device()))  # a graph has room for tokens
    lora_add(out, hidden, captured, pool, place_of("down"), config=SMALL)
    assert torch.equal(out, before)


def test_a_nan_stays_in_its_row():
    adapters = {1: adapter(lambda *_: 4)}
    out, hidden = inputs(3, "output", torch.bfloat16)
    hidden[1, 3] = torch.nan
    lora_add(out, hidden, rows_of([1, 1, 1]), pool_of(adapters, torch.bfloat16, RANKS), place_of("output"), config=SMALL)
    assert out.isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.deep
def test_outputs_are_computed_in_any_number_of_turns():
    adapters = {1: adapter(lambda *_: 16)}
    out, hidden = inputs(2, "qkv", torch.float32)
    pool, rows = pool_of(adapters, torch.float32, RANKS), rows_of([1, 1])
    found = [
        lora_add(out.clone(), hidden, rows, pool, place_of("qkv"), config=replace(SMALL, block_n=16, turns=turns)) for turns in (1, 2, 9)
    ]
    assert_close(found[0], right(out, hidden, [1, 1], adapters, "qkv"), "fp32")
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.deep
def test_cuts_of_the_inputs_are_added_whatever_their_number():
    adapters = {1: adapter(lambda *_: 16)}
    out, hidden = inputs(2, "qkv", torch.float32)
    expected = right(out, hidden, [1, 1], adapters, "qkv")
    for splits in (1, 5):  # the last ones have nothing
        found = lora_add(
            out.clone(),
            hidden,
            rows_of([1, 1]),
            pool_of(adapters, torch.float32, RANKS),
            place_of("qkv"),
            config=replace(SMALL, splits=splits),
        )
        assert_close(found, expected, "fp32")


@pytest.mark.parametrize("tile", [NARROW, WIDE])
def test_every_token_with_an_adapter_is_in_one_tile_of_it(tile):
    random = np.random.default_rng(0)
    for _ in range(50):
        slots = random.choice([0, 0, 1, 4, 9], random.integers(0, 200)).astype(np.int32)
        order, tiles = lora_tiles(slots, tile)
        listed = tiles[1:].reshape(-1, 3)
        assert tiles[0] == len(listed)
        assert sorted(order.tolist()) == np.flatnonzero(slots).tolist()
        assert [*listed[:, 1], order.size][1:] == listed[:, 2].tolist()  # each begins where the one before ends
        for slot, begin, end in listed.tolist():
            assert 0 < end - begin <= tile
            assert (slots[order[begin:end]] == slot).all()


@pytest.mark.parametrize(("slots", "tile"), [([], 16), ([0, 1, 2], 16), ([1] * 16, 16), ([1] * 17, 64), ([1] * 17 + [2] * 3, 16)])
def test_tiles_are_wide_where_adapters_have_many_rows(slots, tile):
    assert lora_tile(np.asarray(slots, np.int32)) == tile


def test_modules_are_packed_behind_one_another_with_their_ranks_rounded_up():
    packed = pack_lora(adapter(RANK_OF["some modules"]), torch.empty(0))
    first, last = packed.places.tolist()
    assert [module[2] for module in first] == [16, 0, 32, 32, 0, 16, 0]
    assert [module[3] for module in first] == [0, 16, 16, 0, 0, 0, 0]
    assert [module[0] % 16 for module in first + last] == [0] * 14
    ends = [begin + rank * 40 for begin, _, rank, _ in (first[0], first[2])]  # of A, of 40 inputs
    assert first[1][0] == first[0][0] == 0
    assert first[0][1] == 48 * 40 == ends[0] + 32 * 40
    assert packed.weights.numel() == last[0][0] * 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda out, hidden, rows, pool, place: (out, hidden[:, 1:], rows, pool, place), "strides"),
        (lambda out, hidden, rows, pool, place: (out, hidden.bfloat16(), rows, pool, place), "bfloat16"),
        (lambda out, hidden, rows, pool, place: (out[:, :-1], hidden, rows, pool, place), "shape"),
        (lambda out, hidden, rows, pool, place: (out, hidden, rows, pool, place._replace(layer=2)), "2 layers"),
        (lambda out, hidden, rows, pool, place: (out, hidden, rows, replace(pool, rank=8), place), "multiple of 16"),
        (lambda out, hidden, rows, pool, place: (out, hidden, replace(rows, tokens=rows.tokens.long()), pool, place), "int64"),
    ],
)
def test_what_the_kernels_could_not_read_is_refused(change, told):
    out, hidden = inputs(2, "down", torch.float32)
    arguments = change(out, hidden, rows_of([1, 1]), pool_of({1: adapter(lambda *_: 2)}, torch.float32, RANKS), place_of("down"))
    with pytest.raises(ValueError, match=told):
        lora_add(*arguments)


@pytest.mark.skipif(device().type == "cpu", reason="gigabytes")
def test_an_adapter_behind_two_to_the_31_elements_and_outside_of_the_pool():
    adapters = {1: adapter(lambda *_: 9, dtype=torch.bfloat16)}
    out, hidden = inputs(2, "qkv", torch.bfloat16)
    pool, far = pool_of(adapters, torch.bfloat16, RANKS), torch.empty(2**31 + 2**20, dtype=torch.bfloat16, device=device())
    expected = lora_add(out.clone(), hidden, rows_of([1, 1]), pool, place_of("qkv"))
    far[2**31 :][: pool.weights.numel()] = pool.weights
    moved = LoraPool(far, pool.places.clone(), RANKS)
    moved.places[..., :2] += 2**31
    assert torch.equal(lora_add(out.clone(), hidden, rows_of([1, 1]), moved, place_of("qkv")), expected)
    away = (pool.weights.data_ptr() - far.data_ptr()) // 2  # as where a pool has no place left
    moved.places[..., :2] += away - 2**31
    assert torch.equal(lora_add(out.clone(), hidden, rows_of([1, 1]), moved, place_of("qkv")), expected)


def test_the_two_halves_are_the_whole():
    adapters = {1: adapter(lambda *_: 16)}
    out, hidden = inputs(2, "down", torch.float32)
    rows, pool, place = rows_of([1, 0]), pool_of(adapters, torch.float32, RANKS), place_of("down")
    low = lora_shrink(hidden, rows, pool, place, config=SMALL)
    assert low.shape == (2, 1, RANKS)
    assert_close(low.sum(0), hidden[:1].cpu().double() @ adapters[1][1][6][0].double().T, "fp32")
    assert torch.equal(
        lora_expand(low, rows, pool, place, out.clone(), config=SMALL), lora_add(out, hidden, rows, pool, place, config=SMALL)
    )
