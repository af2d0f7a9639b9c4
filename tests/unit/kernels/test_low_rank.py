"""Adapters in the native decoder: what the torch one computes, and the same bits whatever else is in the step."""

import numpy as np
import pytest
from pagoda_daemon.lora.load import fused_adapter, packed_adapter
from pagoda_daemon.model.config import ExpertNames, Experts
from pagoda_kernels.cpu.choice import missing
from support.engine.native_reference import BLOCKS, Judge, batch, native, shape
from support.engine.random_adapters import matrices, wide

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"native ops: {missing()}")

SHAPES = {
    "a panel of keys and values": {},
    "a panel of all three": {"heads": 6, "hidden": 96, "kv_heads": 1},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "wide": {"hidden": 256, "intermediate": 352},
    "all of two experts in the first layer": {
        "experts": Experts(2, 2, 64, True, ExpertNames("mlp", "gate_proj", "up_proj", "down_proj")),
        "sparse": (True, False),
    },
}
RANKS = {
    "sixteen": lambda _: 16,
    "one of each": lambda module: 1 + len(module.name) % 40,
    "queries": lambda module: 7 if "q_proj" in module.name else 0,
    "values and the way up of the last layer": lambda module: (
        20 * (module.layer == 1) * any(name in module.name for name in ("v_proj", "up_proj"))
    ),
}


def prompt(count, seed=0, vocab=200):
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def tables(rows, blocks=10):
    return np.random.default_rng(5).permutation(BLOCKS)[: rows * blocks].reshape(rows, blocks)


def adapted(pieces, table, slots):
    """`batch` with an adapter for each line of `table`."""
    plain = batch(pieces, table)
    return type(plain)(plain.ids, plain.positions, plain.rows, plain.tables, plain.wanted, None, np.asarray(slots, np.int32))


def holding(spec, adapters, **settings):
    """A native decoder with `adapters` in slots from 1."""
    decoder = native(spec, **settings)
    for slot, found in enumerate(adapters, 1):
        decoder.hold(slot, packed_adapter(found, spec).packed)
    return decoder


def cosines(left, right):
    return (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("rank", RANKS.values(), ids=RANKS)
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_logits_are_those_of_the_torch_decoder(changes, rank):
    spec, table, ids = shape(**changes), tables(1), prompt(60)
    found = matrices(spec, 1, rank)
    ours = holding(spec, [found]).step(adapted([(0, ids, 0)], table, [1]))
    theirs = Judge(spec).logits(ids, table[0], fused_adapter(wide(found), spec))
    found_cosines = cosines(ours, theirs)
    assert found_cosines.mean() > 0.9997
    assert found_cosines.min() > 0.998  # an adapter as large as this sharpens attention; a wrong module gives less than 0.9
    assert np.abs(np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1) - 1).max() < 0.02
    assert cosines(ours, native(spec).step(batch([(0, ids, 0)], table))).min() < 0.98


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("kind", [0, 1], ids=["bf16", "int8"])
def test_a_row_gets_the_same_bits_in_any_batch_and_in_any_pieces(changes, kind):
    """Also behind the rows that one thread takes at once, and behind a pass of 256 tokens. A row without an adapter gets those of a
    decoder that has none."""
    spec, table, slots = shape(**changes), tables(6), np.array([2, 0, 1, 2, 3, 3], np.int32)
    known = [matrices(spec, seed, rank) for seed, rank in enumerate(list(RANKS.values())[:3])]
    rows = [prompt(count, seed) for seed, count in enumerate((70, 31, 33, 1, 129, 7))]
    together = holding(spec, known, kind=kind).step(adapted([(row, ids, 0) for row, ids in enumerate(rows)], table, slots))
    alone = holding(spec, known, kind=kind, threads=1)
    pieces = [(row, ids[first : first + 19], first) for row, ids in enumerate(rows) for first in range(0, len(ids), 19)]
    parts = [alone.step(adapted([(0, ids, first)], table[[row]], slots[[row]])) for row, ids, first in pieces]
    assert np.array_equal(np.concatenate(parts), together)
    plain = native(spec, kind=kind).step(batch([(0, rows[1], 0)], table[[1]]))
    assert np.array_equal(together[70:101], plain)


def test_the_likeliest_tokens_are_those_of_each_rows_adapter():
    spec, table, slots = shape(), tables(5), np.array([1, 0, 2, 1, 0], np.int32)
    known = [matrices(spec, seed, RANKS["sixteen"]) for seed in range(2)]
    ids, positions = np.arange(5, dtype=np.int32), np.zeros(5, np.int32)
    lines = np.ascontiguousarray(table, np.int32)
    logits = holding(spec, known).step(adapted([(row, [row], 0) for row in range(5)], table, slots))
    decoder = holding(spec, known)
    chosen, best = decoder.likeliest(ids, positions, lines, slots)
    assert np.array_equal(chosen, logits.argmax(-1))
    assert np.array_equal(best, logits.max(-1))
    plain, _ = decoder.likeliest(ids, positions, lines)
    assert np.array_equal(plain, native(spec).likeliest(ids, positions, lines)[0])
    assert not np.array_equal(plain, chosen)


@pytest.mark.usefixtures("library")
def test_int8_weights_meet_adapters_of_bf16():
    spec, ids, table = shape(hidden=256, intermediate=704), prompt(80), tables(1)
    found = matrices(spec, 3, RANKS["sixteen"], size=0.3)
    narrow, full = (holding(spec, [found], kind=kind).step(adapted([(0, ids, 0)], table, [1])) for kind in (1, 0))
    assert cosines(narrow, full).mean() > 0.999


def test_a_slot_may_be_given_to_another_adapter():
    spec, ids, table = shape(), prompt(20), tables(1)
    one, two = (matrices(spec, seed, RANKS["one of each"]) for seed in range(2))
    step = adapted([(0, ids, 0)], table, [1])
    decoder = holding(spec, [one])
    decoder.step(step)
    decoder.hold(1, packed_adapter(two, spec).packed)
    assert np.array_equal(decoder.step(step), holding(spec, [two]).step(step))
    decoder.hold(1, None)
    with pytest.raises(ValueError, match="not held"):
        decoder.step(step)


@pytest.mark.parametrize("slot", [-1, 2, 1 << 30])
def test_an_adapter_that_is_not_held_is_refused(slot):
    spec, table = shape(), tables(1)
    decoder = holding(spec, [matrices(spec, 0, RANKS["queries"])])
    with pytest.raises(ValueError, match="not held"):
        decoder.step(adapted([(0, [1], 0)], table, [slot]))


def test_an_adapter_of_another_decoder_or_without_a_slot_is_refused():
    spec, more = shape(), shape(layers=3, windows=(None,) * 3, sparse=(False,) * 3)
    with pytest.raises(ValueError, match="14 modules, got 21"):
        native(spec).hold(1, packed_adapter(matrices(more, 0, RANKS["sixteen"]), more).packed)
    with pytest.raises(ValueError, match="at least 1"):
        native(spec).hold(0, packed_adapter(matrices(spec, 0, RANKS["sixteen"]), spec).packed)
