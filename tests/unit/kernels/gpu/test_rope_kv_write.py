"""Norms of heads, the turn and the write into the cache, beside float64 and beside the roundings of the daemon's torch ops."""

from dataclasses import replace

import pytest
import torch
from pagoda_kernels.gpu.rope_kv_write import HeadNorms, KvPlace, Turn, rope_kv_write
from pagoda_kernels.reference.quantise import dequantise, quantise
from pagoda_kernels.reference.rope_kv_write import rope_kv_write as judged
from pagoda_kernels.reference.ulps import ulps_apart
from pagoda_kernels.testing import KIND_OF, assert_close, device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# heads, kv_heads, head_dim: one of each, heads that no group is filled by, several groups, halves that are no power of two, many a group
SIZES = [(1, 1, 2), (4, 2, 32), (3, 1, 6), (14, 3, 128), (5, 5, 40), (33, 1, 64)]
USUAL = (14, 3, 128)
LENGTH = 50
POOL = 64
EPS = 1e-3  # large: left out, it is seen


def case(sizes, dtype, tokens=5, *, norms, slots=None):
    """Inputs of `tokens` tokens; the cache is filled with what no key or value is."""
    heads, kv_heads, dim = sizes
    chance = torch.Generator().manual_seed(3)

    def drawn(*shape):
        return torch.randn(*shape, generator=chance).to(dtype).to(device())

    def whole(values, kind):
        return torch.as_tensor(values).to(kind).to(device())

    positions = torch.randint(0, LENGTH, (tokens,), generator=chance)
    places = torch.randperm(POOL, generator=chance)[:tokens] if slots is None else slots
    # Other angles in the second half than in the first: each must be read from its own place.
    angles = torch.outer(torch.arange(LENGTH), torch.rand(dim, generator=chance))
    turn = Turn(angles.cos().to(dtype).to(device()), angles.sin().to(dtype).to(device()), whole(positions, torch.int32))
    kv = torch.full((2, POOL, kv_heads, dim), -77.0, dtype=dtype, device=device())
    weights = HeadNorms(drawn(dim), drawn(dim), EPS) if norms else None
    return drawn(tokens, (heads + 2 * kv_heads) * dim), turn, KvPlace(kv, whole(places, torch.int64)), weights


def run(sizes, inputs):
    query = torch.full((len(inputs[0]), sizes[0], sizes[2]), torch.nan, dtype=inputs[0].dtype, device=device())
    assert rope_kv_write(*inputs, query=query) is query
    return query


def expected(sizes, inputs, dtype=torch.float64):
    qkv, turn, _, norms = inputs
    weights = None if norms is None else (norms.query, norms.key, norms.eps)
    return judged(qkv, (turn.cos, turn.sin, turn.positions), sizes, weights, dtype)


def cache_after(place, key, value):
    """The cache, filled as in `case`, with the tokens' keys and values in it."""
    cache = torch.full_like(place.kv, -77.0)
    kept = place.slots >= 0
    cache[0, place.slots[kept]], cache[1, place.slots[kept]] = key[kept].to(cache.dtype), value[kept].to(cache.dtype)
    return cache


@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norms"])
@pytest.mark.parametrize(("sizes", "dtype"), [*((sizes, torch.float32) for sizes in SIZES), *((USUAL, dtype) for dtype in DTYPES[1:])])
def test_queries_are_returned_and_keys_and_values_cached(sizes, dtype, norms):
    inputs = case(sizes, dtype, 3, norms=norms)
    qkv = inputs[0].clone()
    query = run(sizes, inputs)
    wanted, key, value = expected(sizes, inputs)
    slots = inputs[2].slots
    assert_close(query, wanted, KIND_OF[dtype])
    assert_close(inputs[2].kv[0, slots], key, KIND_OF[dtype])
    assert torch.equal(inputs[2].kv[1, slots], value.to(dtype))
    assert torch.equal(inputs[0], qkv)


@pytest.mark.parametrize(("sizes", "dtype"), [*((sizes, torch.bfloat16) for sizes in SIZES), (USUAL, torch.float16)])
def test_without_norms_all_bits_are_those_of_torch_and_nothing_else_is_written(sizes, dtype):
    inputs = case(sizes, dtype, 3, norms=False)
    query = run(sizes, inputs)
    wanted, key, value = expected(sizes, inputs, dtype)
    assert (ulps_apart(query, wanted) == 0).all()
    assert (ulps_apart(inputs[2].kv, cache_after(inputs[2], key, value)) == 0).all()


@pytest.mark.parametrize(("sizes", "dtype"), [((4, 2, 32), torch.bfloat16), ((5, 5, 40), torch.bfloat16), (USUAL, torch.float16)])
def test_with_norms_roundings_are_those_of_torch(sizes, dtype):
    """One ulp of a normed value, where a sum in another order rounds the other way, is more than one where a turn cancels."""
    inputs = case(sizes, dtype, norms=True)
    query = run(sizes, inputs)
    wanted, key, value = expected(sizes, inputs, dtype)
    for out, right in ((query, wanted), (inputs[2].kv, cache_after(inputs[2], key, value))):
        largest = right.abs().amax(-1, keepdim=True).float()
        assert ((out.float() - right.float()).abs() <= 2 * torch.finfo(dtype).eps * largest).all()
        assert (ulps_apart(out, right) == 0).float().mean() > 0.98


@pytest.mark.parametrize("slots", [[-1, 3, -1, 0, POOL - 1], [-1] * 5])
def test_slot_minus_one_writes_nothing_and_still_has_a_query(slots):
    sizes = (4, 2, 32)
    inputs = case(sizes, torch.bfloat16, norms=False, slots=slots)
    query = run(sizes, inputs)
    wanted, key, value = expected(sizes, inputs, torch.bfloat16)
    assert torch.equal(query, wanted)
    assert torch.equal(inputs[2].kv, cache_after(inputs[2], key, value))


def narrow(place, kind, block_size=16):
    """The same place in 8 bits, filled with what no key or value is."""
    kv, scales = quantise(place.kv, kind, block_size)
    return replace(place, kv=kv, scales=torch.full_like(scales, torch.nan))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
@pytest.mark.parametrize(("sizes", "norms"), [(USUAL, False), (USUAL, True), ((5, 5, 40), True)])
def test_eight_bits_are_the_nearest_of_each_head(kind, sizes, norms):
    qkv, turn, place, weights = case(sizes, torch.bfloat16, 3, norms=norms, slots=[0, -1, POOL - 1])
    qkv.view(3, -1, sizes[2])[2, -1] = 0  # a head of zeros
    wide, kept = replace(place, kv=place.kv.clone()), narrow(place, kind)
    before = kept.kv.clone()
    query, in_full = run(sizes, (qkv, turn, kept, weights)), run(sizes, (qkv, turn, wide, weights))
    assert torch.equal(query, in_full)
    slots = place.slots[place.slots >= 0]
    written = wide.kv[:, slots].double()
    found = dequantise(kept.kv, kept.scales)[:, slots]
    largest = written.abs().amax(-1, keepdim=True)
    # Half a step: of int8 anywhere, of e4m3 that of the element's own power of two, or of the smallest.
    half = largest / 127 / 2 if kind == torch.int8 else torch.maximum(written.abs() / 16, largest / 448 / 1024)
    assert ((found - written).abs() <= half * (1 + 1e-5)).all()
    assert torch.allclose(found.abs().amax(-1, keepdim=True), largest, rtol=1e-6, atol=0)
    others = torch.ones(POOL, dtype=torch.bool, device=device())
    others[slots] = False
    assert torch.equal(kept.kv[:, others].view(torch.uint8), before[:, others].view(torch.uint8))
    assert kept.scales.transpose(2, 3).flatten(1, 2)[:, others].isnan().all()
    assert kept.scales.isfinite().sum() == 2 * len(slots) * sizes[1]


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8])
def test_a_head_that_is_not_finite_is_not_in_eight_bits_either(kind):
    sizes = (4, 2, 32)
    qkv, turn, place, _ = case(sizes, torch.bfloat16, norms=False)
    kept = narrow(place, kind)
    for value in (torch.nan, torch.inf):
        qkv.view(5, 8, 32)[2, 6, 3] = value
        run(sizes, (qkv, turn, kept, None))
        found = dequantise(kept.kv, kept.scales)[1, place.slots[2]]
        assert not found[0, 3].isfinite()
        assert found[1].isfinite().all()


def test_no_tokens():
    sizes = (4, 2, 32)
    inputs = case(sizes, torch.bfloat16, 0, norms=True)
    assert run(sizes, inputs).shape == (0, 4, 32)
    assert (inputs[2].kv == -77).all()


def test_a_token_has_the_same_bits_in_any_batch():
    sizes = (14, 3, 128)
    qkv, turn, place, norms = case(sizes, torch.bfloat16, 9, norms=True)
    together = run(sizes, (qkv, turn, place, norms))
    cache = place.kv.clone()
    for token in (0, 4, 8):
        one = slice(token, token + 1)
        place.kv.fill_(0)
        alone = run(sizes, (qkv[one], replace(turn, positions=turn.positions[one]), replace(place, slots=place.slots[one]), norms))
        assert torch.equal(alone[0], together[token])
        assert torch.equal(place.kv[:, place.slots[token]], cache[:, place.slots[token]])


@pytest.mark.parametrize("norms", [False, True], ids=["plain", "norms"])
def test_a_nan_stays_in_its_head(norms):
    sizes = (4, 2, 32)
    inputs = case(sizes, torch.bfloat16, norms=norms)
    clean = run(sizes, inputs)
    kept = inputs[2].kv.clone()
    inputs[0].view(5, 8, 32)[2, 1] = torch.nan
    query = run(sizes, inputs)
    assert query[2, 1].isnan().all()
    query[2, 1] = clean[2, 1]
    assert torch.equal(query, clean)
    assert torch.equal(inputs[2].kv, kept)


def test_a_head_may_have_its_norm_s_weights_for_queries_or_for_keys():
    sizes = (4, 2, 32)
    qkv, turn, place, _ = case(sizes, torch.float32, norms=False)
    ones = torch.ones(32, device=device())
    query = run(sizes, (qkv, turn, place, HeadNorms(2 * ones, 3 * ones, EPS)))
    heads = qkv.view(5, 8, 32)
    assert query.norm() > 0
    wanted, key, _ = judged(qkv, (turn.cos, turn.sin, turn.positions), sizes, (2 * ones, 3 * ones, EPS))
    assert_close(query, wanted, "fp32")
    assert_close(place.kv[0, place.slots], key, "fp32")
    assert torch.equal(place.kv[1, place.slots], heads[:, 6:])


@pytest.mark.skipif(device().type == "cpu", reason="takes 8 GiB, of which the interpreter would keep a record per byte")
@pytest.mark.parametrize("plane", [0, 1])
def test_a_pool_of_more_than_two_to_the_31_elements(plane):
    kv = torch.empty(2, 2**21 + 64, 8, 128, dtype=torch.bfloat16, device=device())
    sizes = (2, 8, 128)
    qkv, turn, _, _ = case(sizes, torch.bfloat16, 2, norms=False)
    place = KvPlace(kv, torch.tensor([2**21 + 63, 2**21 - 1], device=device()))
    wanted = expected(sizes, (qkv, turn, place, None), torch.bfloat16)
    run(sizes, (qkv, turn, place, None))
    assert torch.equal(kv[plane, place.slots], wanted[1 + plane])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda qkv, turn, place: (qkv[:, :-1], turn, place), "shape"),
        (lambda qkv, turn, place: (qkv.float(), turn, place), "bfloat16"),
        (lambda qkv, turn, place: (qkv, replace(turn, sin=turn.sin[:-1]), place), "shape"),
        (lambda qkv, turn, place: (qkv, replace(turn, positions=turn.positions.long()), place), "int32"),
        (lambda qkv, turn, place: (qkv, turn, replace(place, slots=place.slots.int())), "int64"),
        (lambda qkv, turn, place: (qkv, turn, replace(place, kv=place.kv.transpose(1, 2))), "shape"),
        (lambda qkv, turn, place: (qkv, turn, replace(place, kv=place.kv[:, ::2])), "strides"),
        (lambda qkv, turn, place: (qkv, turn, replace(place, kv=place.kv.to(torch.int8))), "no scales"),
        (lambda qkv, turn, place: (qkv, turn, replace(narrow(place, torch.int8), kv=place.kv)), "8 bits with scales"),
    ],
    ids=["width", "dtype", "tables", "positions", "slots", "cache", "strided cache", "no scales", "scales"],
)
def test_what_the_kernel_could_not_read_is_refused(change, told):
    sizes = (4, 2, 32)
    qkv, turn, place, _ = case(sizes, torch.bfloat16, norms=False)
    with pytest.raises(ValueError, match=told):
        run(sizes, (*change(qkv, turn, place), None))


def test_an_odd_head_dim_is_refused():
    with pytest.raises(ValueError, match="head_dim is 3"):
        run((4, 2, 3), case((4, 2, 3), torch.bfloat16, norms=False))
