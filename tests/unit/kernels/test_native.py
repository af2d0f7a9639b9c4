"""The native decoder against the torch one, and against itself in other batches: same bits, whatever else is computed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy._core import _multiarray_umath
from pagoda_daemon.model.config import ExpertNames, Experts
from pagoda_daemon.model.packed import Packer
from pagoda_daemon.model.weights import destinations
from pagoda_kernels.cpu.choice import chosen, missing
from pagoda_kernels.cpu.native import NativeDecoder, unfit
from support.engine.native_reference import BLOCKS, POSITIONS, Judge, batch, native, shape, weights_of

pytestmark = pytest.mark.skipif(missing() is not None, reason=f"native ops: {missing()}")

SHAPES = {
    "groups of two": {},
    "one key head per query head": {"kv_heads": 4},
    "groups of three, odd sizes": {"heads": 6, "hidden": 96, "vocab_size": 129},
    "groups of seven": {"heads": 14},
    "groups of twelve": {"heads": 12, "kv_heads": 1},
    "heads of 80": {"head_dim": 80},
    "heads of 128": {"head_dim": 128, "heads": 2, "kv_heads": 1},
    "tied": {"tied": True},
    "heads wider than the model": {"heads": 8, "head_dim": 64},
    "fewer tokens than a panel": {"vocab_size": 33},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "norms on queries and keys": {"qk_norm": True},
    "windows": {"windows": (9, 40)},
    "one windowed layer": {"windows": (None, 20)},
    "wide": {"hidden": 256, "intermediate": 352, "layers": 3, "windows": (None,) * 3, "sparse": (False,) * 3},
}


def experts(count, per_token, *, normalised=True, width=64, **changes):
    names = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj")
    return {"experts": Experts(count, per_token, width, normalised, names), "sparse": (True, True), **changes}


SPARSE = {
    "two of eight experts": experts(8, 2),
    "all of three experts, a share of each": experts(3, 3, normalised=False, tied=True),
    "three of seventy experts": experts(70, 3, width=32, hidden=96),
    "experts in one layer": experts(4, 1, sparse=(False, True)),
}


def prompt(count, seed=0, vocab=200):
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def tables(rows, blocks=12):
    """Blocks of several rows, scattered."""
    return np.random.default_rng(5).permutation(BLOCKS)[: rows * blocks].reshape(rows, blocks)


def cosines(left, right):
    return (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_logits_are_those_of_the_torch_decoder(changes):
    spec, table = shape(**changes), tables(1)
    ids = prompt(150, vocab=spec.vocab_size)
    ours = native(spec).step(batch([(0, ids, 0)], table))
    theirs = Judge(spec).logits(ids, table[0])
    # bf16 keeps 8 bits; a wrong window, rotation or head order gives cosines below 0.9.
    assert cosines(ours, theirs).min() > 0.9995
    # A cosine does not see a factor.
    assert np.abs(np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1) - 1).max() < 0.02


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("changes", SPARSE.values(), ids=SPARSE)
def test_experts_are_mixed_as_by_the_torch_decoder(changes):
    spec, table = shape(**changes), tables(1)
    ids = prompt(150)
    ours, theirs = native(spec).step(batch([(0, ids, 0)], table)), Judge(spec).logits(ids, table[0])
    # Where two experts are nearly as good for a token, bf16 may choose the other one, which later tokens then look at.
    found = np.sort(cosines(ours, theirs))
    assert found[len(ids) // 4] > 0.9995
    assert found[0] > 0.7
    ratios = np.abs(np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1) - 1)
    assert np.median(ratios) < 0.01


def test_an_expert_that_no_token_chose_is_not_read():
    spec, table = shape(**experts(8, 1)), tables(1)
    weights = weights_of(spec)
    for layer in weights.layers:
        layer.mlp.router.zero_()  # of equals the first is chosen
        layer.mlp.gate_up[1:] = layer.mlp.down[1:] = torch.nan
    packer = Packer(spec, weights, 0)
    for name in destinations(spec, weights):
        packer.filled(name)
    decoder = NativeDecoder(packer.decoder(POSITIONS, 0), BLOCKS, 2)
    assert np.isfinite(decoder.step(batch([(0, prompt(40), 0)], table))).all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("changes", [*SHAPES.values(), *SPARSE.values()], ids=[*SHAPES, *SPARSE])
@pytest.mark.parametrize("kind", [0, 1], ids=["bf16", "int8"])
def test_a_row_gets_the_same_bits_in_any_batch_and_in_any_pieces(changes, kind):
    spec, table = shape(**changes), tables(4)
    rows = [prompt(count, seed, spec.vocab_size) for seed, count in enumerate((70, 1, 33, 129))]
    together = native(spec, kind=kind).step(batch([(row, ids, 0) for row, ids in enumerate(rows)], table))
    alone = native(spec, kind=kind, threads=1)
    pieces = [(row, ids[first : first + 19], first) for row, ids in enumerate(rows) for first in range(0, len(ids), 19)]
    assert np.array_equal(np.concatenate([alone.step(batch([piece], table)) for piece in pieces]), together)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("wide_rows", [0, 1000], ids=["8-bit activations", "bf16 activations"])
@pytest.mark.parametrize("changes", [{}, {"tied": True}, {"qkv_bias": True, "qk_norm": True}], ids=str)
def test_eight_bit_weights_hardly_change_the_logits(changes, wide_rows):
    spec, ids, table = shape(**changes, hidden=256, intermediate=704), prompt(100), tables(1)
    narrow = native(spec, kind=1, wide_rows=wide_rows).step(batch([(0, ids, 0)], table))
    found = cosines(narrow, native(spec).step(batch([(0, ids, 0)], table)))
    assert found.mean() > 0.999
    assert found.min() > 0.997


def test_a_step_longer_than_one_pass_is_the_same_as_its_parts():
    spec, table, ids = shape(), tables(1, blocks=40), prompt(600)
    whole = native(spec).step(batch([(0, ids[:500], 0)], table))
    parts = native(spec)
    found = [parts.step(batch([(0, ids[first : first + 100], first)], table)) for first in range(0, 500, 100)]
    assert np.array_equal(np.concatenate(found), whole)


def test_only_wanted_tokens_are_answered():
    spec, table, ids = shape(), tables(2), prompt(40)
    every = batch([(0, ids, 0), (1, ids[:7], 0)], table)
    full = native(spec).step(every)
    some = native(spec).step(replace(every, wanted=np.array([39, 46], np.int32)))
    assert np.array_equal(some, full[[39, 46]])


@pytest.mark.parametrize("kind", [0, 1], ids=["bf16", "int8"])
def test_the_states_of_wanted_tokens_are_what_the_head_reads(kind):
    spec, table, ids = shape(), tables(1, 30), prompt(300)
    places = np.array([2, 0, 1], np.int32)
    every = batch([(0, ids, 0)], table)
    wanted = replace(every, wanted=np.array([7, 255, 299], np.int32), places=places)
    states = np.full((3, spec.hidden), np.nan, np.float32)
    decoder = native(spec, kind=kind)
    logits = decoder.step(wanted, states)
    assert np.array_equal(logits, native(spec, kind=kind).step(every)[[255, 299, 7]])
    head = weights_of(spec).head.float().numpy()
    assert cosines(states @ head.T, logits).min() > (0.9999 if kind == 0 else 0.995)
    with pytest.raises(ValueError, match="states"):
        decoder.step(wanted, states[:2])


@pytest.mark.usefixtures("library")
def test_nothing_in_unwritten_slots_reaches_a_row():
    spec, table, ids = shape(), tables(1), prompt(21)
    clean = native(spec).step(batch([(0, ids, 0)], table))
    poisoned = native(spec)
    poisoned.pages.fill_(float("nan"))
    assert np.array_equal(poisoned.step(batch([(0, ids, 0)], table)), clean)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("place", [0, *range(112, 129), 199])
def test_a_key_that_is_not_finite_is_not_lost_in_a_maximum(place):
    spec, table, ids = shape(), tables(1, blocks=14), prompt(200)
    decoder = native(spec)
    decoder.step(batch([(0, ids, 0)], table))
    block = decoder.pages[:, 0, int(table[0][place // 16])].view(len(decoder.pages), spec.kv_heads, -1, 16, 2)
    block[:, :, :, place % 16] = torch.nan
    assert np.isnan(decoder.step(batch([(0, [5], 200)], table))).all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("changes", [{}, SPARSE["two of eight experts"]], ids=["dense", "experts"])
@pytest.mark.parametrize("kind", [0, 1], ids=["bf16", "int8"])
def test_a_row_that_is_not_finite_says_so_and_stays_alone(kind, changes):
    spec, table, ids = shape(**changes), tables(2), prompt(30)
    clean = native(spec, kind=kind).step(batch([(0, ids, 0)], table))
    decoder = native(spec, kind=kind)
    decoder.step(batch([(1, ids, 0)], table))
    decoder.pages[0, 0, int(table[1][0])] = float("nan")
    both = decoder.step(batch([(0, ids, 0), (1, [3], 30)], table))
    assert np.array_equal(both[:30], clean)
    assert np.isfinite(both[:30]).all()
    assert np.isnan(both[30]).any()


def test_a_copied_block_carries_its_tokens():
    spec, table, ids = shape(), tables(2), prompt(20)
    decoder = native(spec)
    decoder.step(batch([(0, ids, 0)], table))
    decoder.copy_blocks(np.array([[table[0][0], table[1][0]], [table[0][1], table[1][1]]], np.int32))
    after = decoder.step(batch([(0, [5], 20), (1, [5], 20)], table))
    assert np.array_equal(after[0], after[1])


def test_blocks_that_are_copied_in_a_circle_change_places():
    decoder, random = native(shape()), np.random.default_rng(3)
    decoder.pages.view(torch.int16).copy_(torch.from_numpy(random.integers(-99, 99, tuple(decoder.pages.shape), dtype=np.int16)))
    before = decoder.pages.clone()
    decoder.copy_blocks(np.array([[1, 2], [2, 3], [3, 1]], np.int32))
    assert torch.equal(decoder.pages[:, :, [2, 3, 1]].view(torch.int16), before[:, :, [1, 2, 3]].view(torch.int16))


@pytest.mark.usefixtures("library")
def test_blocks_behind_every_window_may_be_given_away():
    spec, table, ids = shape(windows=(20, 20)), tables(1), prompt(100)
    kept = native(spec)
    expected = kept.step(batch([(0, ids, 0), (0, [1], 100)], table))[-1]
    decoder = native(spec)
    decoder.step(batch([(0, ids, 0)], table))
    decoder.pages[:, :, table[0][:5].tolist()] = float("nan")  # positions 0 to 79; the query at 100 sees 81 and later
    gone = table.copy()
    gone[0][:5] = 0
    assert np.array_equal(decoder.step(batch([(0, [1], 100)], gone))[0], expected)


def test_wanted_tokens_are_answered_at_their_places():
    spec, table, ids = shape(), tables(1, blocks=20), prompt(300)  # more than one pass
    every = batch([(0, ids, 0)], table)
    full = native(spec).step(every)
    some = native(spec).step(replace(every, wanted=np.array([3, 7, 280], np.int32), places=np.array([2, 0, 1], np.int32)))
    assert np.array_equal(some, full[[7, 280, 3]])


WRONG_STEPS = {
    "an id behind the vocabulary": ({"ids": [5, 200, 5]}, "token id"),
    "a token that is not known yet": ({"ids": [5, -1, 5]}, "token id"),
    "a position behind the last one": ({"positions": [0, 1, POSITIONS]}, "position"),
    "a position behind the table": ({"positions": [0, 1, 12 * 16]}, "position"),
    "a row without a table": ({"rows": [0, 0, 1]}, "no table"),
    "a block that does not exist": ({"tables": [[0, BLOCKS]]}, "a block"),
    "a token that is not there": ({"wanted": [0, 3]}, "wanted"),
    "tokens that go down": ({"wanted": [1, 0]}, "ascending"),
    "a place that is not there": ({"wanted": [0, 1], "places": [0, 2]}, "no place"),
    "fewer positions than ids": ({"positions": [0, 1]}, "equal in number, got 3, 2, 3"),
    "fewer places than tokens": ({"wanted": [0, 1], "places": [0]}, "places too, got 2, 1"),
}


@pytest.mark.parametrize(("changes", "words"), WRONG_STEPS.values(), ids=WRONG_STEPS)
def test_a_step_that_points_outside_is_refused_and_writes_nothing(changes, words):
    decoder, sound = native(shape()), batch([(0, [1, 2, 3], 0)], tables(1))
    with pytest.raises(ValueError, match=words):
        decoder.step(replace(sound, **{name: np.array(values, np.int32) for name, values in changes.items()}))
    assert not decoder.pages.any()


@pytest.mark.parametrize("pair", [(0, BLOCKS), (-1, 0)])
def test_a_copy_of_a_block_that_does_not_exist_is_refused(pair):
    with pytest.raises(ValueError, match="a block that does not exist"):
        native(shape()).copy_blocks(np.array([pair], np.int32))


def test_a_decoder_has_a_thread():
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        native(shape(), threads=0)


def test_the_time_of_a_step_is_reported_by_stage():
    decoder = native(shape())
    assert set(decoder.spent().values()) == {0}
    decoder.step(batch([(0, prompt(30), 0)], tables(1)))
    spent = decoder.spent()
    assert all(spent[stage] > 0 for stage in ("embed", "norm", "qkv", "place", "attend", "output", "gate_up", "down", "head"))
    assert spent["quantise"] == 0


def test_a_closed_decoder_closes_twice():
    decoder = native(shape())
    decoder.close()
    decoder.close()
    with pytest.raises(ValueError, match="closed"):
        decoder.step(batch([(0, [1], 0)], tables(1)))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((4, 24, 64, 96), "24 dimensions"),
        ((4, 272, 64, 96), "272 dimensions"),
        ((4, 16, 48, 96), "hidden 48"),
        ((4, 16, 64, 40), "intermediate 40"),
        ((3, 16, 64, 96), "3 heads of 16"),
    ],
)
def test_sizes_that_cannot_be_packed_are_named(sizes, words):
    assert words in unfit(*sizes)


def test_a_cpu_without_the_instructions_is_named_by_what_it_lacks(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor : 0\nflags : fpu sse avx\n")
    assert missing(tmp_path / "cpuinfo") == "the CPU lacks avx2, fma"


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("avx2 fma avx512f avx512bw avx512vl avx512dq avx512_bf16 avx512_vnni", "avx512"),
        ("avx2 fma avx512f avx512bw avx512vl avx512dq avx512_vnni", "avx2"),  # Ice Lake
        ("avx2 fma", "avx2"),  # Zen 3, and clients' processors
        ("avx2", None),
    ],
)
def test_the_best_library_that_a_processor_can_run_is_taken(flags, name, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : fpu sse {flags}\n")
    variant = chosen(tmp_path / "cpuinfo")
    assert (variant and variant.name) == name


def test_a_system_that_tells_no_instructions_has_none(tmp_path):
    assert missing(tmp_path / "cpuinfo") == "the CPU lacks avx2, fma"


def test_a_library_that_cannot_be_loaded_or_is_not_there_is_said(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    assert missing(library=broken).startswith("the native library cannot be loaded")
    assert "without the native library" in missing(library=tmp_path / "none.so")


def test_a_library_from_other_sources_is_not_used():
    assert missing(library=Path(_multiarray_umath.__file__)) == "the native library was built from other sources than these"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("vocab", [200, 33, 129])
def test_the_likeliest_token_is_the_first_largest_logit(vocab):
    spec, table = shape(vocab_size=vocab), tables(5)
    ids = np.asarray(prompt(5, vocab=vocab), np.int32)
    one_each = batch([(row, ids[row : row + 1], 0) for row in range(5)], table)
    logits = native(spec).step(one_each)
    tokens, best = native(spec).likeliest(ids, np.zeros(5, np.int32), np.ascontiguousarray(table, np.int32))
    assert np.array_equal(tokens, logits.argmax(-1))
    assert np.array_equal(best, logits.max(-1))


def test_equal_logits_give_the_first_token_and_padding_gives_none():
    spec, table = shape(vocab_size=129), np.ascontiguousarray(tables(2), np.int32)
    decoder = native(spec)
    decoder._kept.norm[:] = 0  # all logits are 0, as those of the padding are
    tokens, best = decoder.likeliest(np.array([3, 4], np.int32), np.zeros(2, np.int32), table)
    assert (tokens.tolist(), best.tolist()) == ([0, 0], [0.0, 0.0])
    decoder._kept.norm[:] = -1
    decoder.likeliest(np.array([3, 4], np.int32), np.zeros(2, np.int32), table)
    assert (decoder.likeliest(np.array([3, 4], np.int32), np.zeros(2, np.int32), table)[0] < 129).all()


def test_a_row_that_is_not_finite_has_no_likeliest_token_and_changes_no_other():
    spec, table, ids = shape(), np.ascontiguousarray(tables(2), np.int32), prompt(30)
    decoder = native(spec)
    decoder.step(batch([(0, ids, 0), (1, ids, 0)], table))
    clean = decoder.likeliest(np.array([3], np.int32), np.array([30], np.int32), table[:1])
    decoder.pages[0, 0, int(table[1][0])] = float("nan")
    tokens, best = decoder.likeliest(np.array([3, 3], np.int32), np.array([30, 30], np.int32), table)
    assert (tokens[0], best[0]) == (clean[0][0], clean[1][0])
    assert np.isnan(best[1])


def test_rows_and_tables_may_grow_from_one_decode_to_the_next():
    spec, wide = shape(), np.ascontiguousarray(tables(4), np.int32)
    decoder, judge = native(spec), native(spec)
    for rows, blocks in ((1, 1), (4, 12), (2, 3), (3, 12)):
        table = np.ascontiguousarray(wide[:rows, :blocks])
        ids = np.asarray(prompt(rows, seed=rows), np.int32)
        expected = judge.step(batch([(row, ids[row : row + 1], 0) for row in range(rows)], table)).argmax(-1)
        assert np.array_equal(decoder.likeliest(ids, np.zeros(rows, np.int32), table)[0], expected)


def test_a_decode_that_points_outside_is_refused():
    decoder, table = native(shape()), np.ascontiguousarray(tables(1), np.int32)
    for ids, positions, blocks, why in (
        ([200], [0], table, "vocabulary"),
        ([1], [12 * 16], table, "position"),
        ([1], [0], np.full_like(table, BLOCKS), "block"),
        ([1, 2], [0], table, "equal in number, got 2, 1, 1"),
    ):
        with pytest.raises(ValueError, match=why):
            decoder.likeliest(np.array(ids, np.int32), np.array(positions, np.int32), blocks)
