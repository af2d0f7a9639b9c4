"""The GPU's worker, its kernels interpreted, against the torch one: the same plans, the same tokens, whatever is mixed in a step."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import structlog
import torch
from pagoda_contracts.launch import AdaptersConfig, EngineConfig
from pagoda_daemon.core.batch import LAST_SAMPLED, SamplingRows, StepPlan, WorkerLimits
from pagoda_daemon.core.messages import DeepCheckPrompt
from pagoda_daemon.core.sampling import Sampling, draw_of
from pagoda_daemon.gpu import attending, load, staging
from pagoda_daemon.gpu.graphs import DecodeGraphs
from pagoda_daemon.gpu.inputs import (
    ADAPTED,
    ADAPTED_WANTED,
    Shape,
    bucket_of,
    buckets,
    decode_arrays,
    fill,
    leading,
    mixed_arrays,
    places,
    tiles_name,
)
from pagoda_daemon.gpu.load import warm, warm_worker
from pagoda_daemon.gpu.memory_pattern import MemoryPattern
from pagoda_daemon.gpu.staging import Staging
from pagoda_daemon.lora.load import fused_adapter, pooled_adapter
from pagoda_daemon.model import files, fused
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import FAMILIES, Experts
from pagoda_daemon.model.decoder import Decoder
from pagoda_daemon.model.fused import not_fused
from pagoda_daemon.model.weights import allocate, destinations
from pagoda_daemon.runner.forward import TorchForward
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_daemon.scheduler.extra_row import with_extra_row, without_extra_row
from pagoda_daemon.scheduler.limits import Limits
from pagoda_kernels.testing import assert_close, device
from pagoda_sizing.host import STAGED
from support.engine.native_reference import shape, weights_of
from support.engine.random_adapters import matrices, wide
from triton import knobs

pytestmark = [pytest.mark.deep, pytest.mark.usefixtures("honest")]  # seconds of Triton's interpreter

BLOCKS, BLOCK, POSITIONS, ROWS = 24, 16, 128, 6
SHAPES = {
    "norms on queries and keys, biases": {"qk_norm": True, "qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "windows": {"windows": (None, 9)},
    "tied, odd sizes": {"tied": True, "hidden": 96, "vocab_size": 129},
}


def weights_on(spec, place):
    """Of one seed, in fp32: what differs is an error, not a rounding."""
    with place:
        weights = allocate(spec, torch.float32)
    bf16 = destinations(spec, weights_of(spec))
    for name, part in destinations(spec, weights).items():
        part.copy_(bf16[name])
    return weights


def workers(spec):
    """The GPU's, on a GPU where there is one, and its judge."""
    limits = WorkerLimits(BLOCKS, BLOCK, spec.vocab_size, POSITIONS)
    ours = warm_worker(spec, weights_on(spec, torch.device(device())), EngineConfig(max_concurrency=ROWS), limits, lambda _share: None)
    kv = KvCache(spec, BLOCKS + 1, BLOCK, torch.float32)
    return ours, ModelWorker(TorchForward(Decoder(spec, weights_on(spec, torch.device("cpu")), POSITIONS), kv), limits)


def adapt(ours, theirs, found):
    """Both hold the adapters `found`, by slot. Strong enough that they choose other tokens."""
    spec = ours.forward.decoder.spec
    if ours.forward.adapters is None:
        load.take_adapters(ours, AdaptersConfig(max_loaded=2, max_rank=20), lambda _share: None)
    for slot, one in found.items():
        ours.forward.adapters[slot] = pooled_adapter(wide(one), spec, ours.forward.kv.data)
        theirs.forward.adapters[slot] = fused_adapter(wide(one), spec)


class Batch:
    """Rows with prompts; `step` feeds some tokens of some, those that decode first."""

    def __init__(self, prompts):
        self.prompts = prompts
        self.fed = [0] * len(prompts)
        blocks = np.random.default_rng(3).permutation(BLOCKS).astype(np.int32)
        width = BLOCKS // len(prompts)
        self.tables = blocks[: width * len(prompts)].reshape(len(prompts), width)
        self.steps = 0

    def step(self, counts, sampling=None):
        """`counts[row]` tokens each, 0: left out; a row whose prompt is fed decodes."""
        rows = sorted((row for row, count in enumerate(counts) if count), key=lambda row: self.fed[row] < len(self.prompts[row]))
        ids, positions, starts, sample = [], [], [0], []
        for row in rows:
            known, first = self.prompts[row], self.fed[row]
            fed = known[first : first + counts[row]] or [LAST_SAMPLED]
            ids += fed
            positions += range(first, first + len(fed))
            starts.append(len(ids))
            self.fed[row] += len(fed)
            sample.append(self.fed[row] >= len(known))
        self.steps += 1
        plan = StepPlan(
            self.steps, *(np.asarray(a, np.int32) for a in (rows, starts, ids, positions)), self.tables[rows], np.asarray(sample, np.bool_)
        )
        return plan if sampling is None else replace(plan, sampling=sampling(int(plan.sample.sum())))


def prompts(vocab, sizes, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(0, vocab, size).tolist() for size in sizes]


def same(ours, theirs):
    assert ours.rows.tolist() == theirs.rows.tolist()
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    assert ours.errors == theirs.errors


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
def test_steps_of_decodes_and_prompts_give_the_tokens_of_torch(changes):
    ours, theirs = workers(spec := shape(**changes))
    batch = Batch(prompts(spec.vocab_size, (1, 17, 40)))
    for counts in ((1, 16, 0), (1, 1, 25), (0, 1, 15), (1, 1, 1)):  # a row is left out and comes back
        plan = batch.step(counts)
        same(ours.execute(plan), theirs.execute(plan))


def test_keys_and_values_in_8_bits_are_read_as_they_were_written():
    """int8 differs in the kernels alone, whose own tests have both: here it would take another 75 s."""
    spec, limits = (made := shape()), WorkerLimits(BLOCKS, BLOCK, made.vocab_size, POSITIONS)
    with torch.device(device()):
        weights = allocate(spec, torch.bfloat16)
    for name, part in destinations(spec, weights_of(spec)).items():
        destinations(spec, weights)[name].copy_(part)
    narrow, whole = (
        warm_worker(spec, weights, EngineConfig(max_concurrency=ROWS, kv_dtype=one), limits, lambda _: None, graphs=False).forward
        for one in ("float8", None)
    )
    assert (narrow.kv.data.itemsize, narrow.kv.nbytes, whole.kv.scales) == (1, (BLOCKS + 1) * BLOCK * spec.kv_token_bytes(1), None)
    batch = Batch(prompts(spec.vocab_size, (17, 20)))
    for counts in ((17, 12), (1, 8)):
        plan = batch.step(counts)
        for forward in (narrow, whole):  # blocks move, and with them their scales
            moved = np.arange(BLOCKS, dtype=np.int32)
            forward.copy_blocks(np.stack([moved, moved[::-1]], axis=1))
        plan = replace(plan, block_tables=(BLOCKS - 1 - plan.block_tables if batch.steps % 2 else plan.block_tables).astype(np.int32))
        got, expected = (forward.logits(plan, np.arange(2)).float().clone() for forward in (narrow, whole))
        assert (got - expected).norm() < 0.05 * expected.norm()


def with_experts(*, normalised):
    names = FAMILIES["Qwen3MoeForCausalLM"].experts
    return shape(experts=Experts(count=4, per_token=2, intermediate=48, normalised=normalised, names=names), sparse=(True, False))


@pytest.mark.parametrize("normalised", [True, False])
def test_experts_give_the_logits_of_torch(normalised):
    ours, theirs = workers(spec := with_experts(normalised=normalised))
    batch = Batch(prompts(spec.vocab_size, (1, 5)))
    for wanted, plan in ((np.array([0, 4]), batch.step((1, 4))), (np.array([0]), batch.step((0, 1)))):
        found, right = (one.forward.logits(plan, wanted).cpu() for one in (ours, theirs))
        assert_close(found, right.double(), "fp32")


def test_a_pass_through_experts_reads_nothing_on_the_host(monkeypatch):
    """A graph could not be captured."""
    ours, _ = workers(spec := with_experts(normalised=True))
    plan = Batch(prompts(spec.vocab_size, (1,))).step((1,))
    for name in ("tolist", "item", "nonzero", "bincount", "__bool__", "__int__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_arguments, **_named: pytest.fail("a value is read on the host"))
    ours.forward.states(plan, np.array([0]))


def test_rows_that_a_graph_is_padded_with_ask_for_no_expert(monkeypatch):
    ours, _ = workers(spec := with_experts(normalised=True))
    asked = []
    monkeypatch.setattr(fused, "moe_grouped", lambda hidden, *_parts, live: asked.append(live.tolist()) or hidden)
    forward, plan = ours.forward, Batch(prompts(spec.vocab_size, (1,))).step((1,))
    sent = forward.send(decode_arrays(plan, forward._shape, 2))
    forward._decode(sent, 2, torch.empty(2, spec.vocab_size, device=device()))
    assert [[slot >= 0 for slot in slots] for slots in asked] == [[True, False]]


def test_tokens_with_an_adapter_are_changed_by_it_and_the_others_are_not():
    ours, theirs = workers(spec := shape())
    some = matrices(spec, 2, lambda module: 20 * ("q_proj" in module.name or "up_proj" in module.name))
    adapt(ours, theirs, {1: matrices(spec, 1, lambda _: 4), 2: some})
    batch, slots = Batch(prompts(spec.vocab_size, (5, 9, 3))), np.array([1, 0, 2], np.int32)
    plans = [batch.step(counts) for counts in ((5, 8, 3), (1, 1, 1), (1, 1, 1))]
    without = theirs.execute(plans[0])
    for number, plan in enumerate(plans):
        if number == 2:
            adapt(ours, theirs, {1: matrices(spec, 3, lambda _: 17)})  # of higher rank, in the same slot
        found = ours.execute(adapted := replace(plan, adapters=slots[plan.rows]))
        same(found, theirs.execute(adapted))
        assert number or (found.token_ids != without.token_ids).all()


def test_what_a_graph_holds_computes_rows_with_adapters():
    """Padded, with room for an adapter of each row's own; the last layer's rows are all wanted."""
    ours, theirs = workers(spec := shape())
    adapt(ours, theirs, {2: matrices(spec, 1, lambda _: 4)})
    batch = Batch(prompts(spec.vocab_size, (1, 1, 1)))
    plan = replace(batch.step((1, 1, 1)), adapters=np.array([2, 0, 2], np.int32))
    logits = torch.full((4, spec.vocab_size), torch.nan, device=device())
    ours.forward._decode(ours.forward.send(decode_arrays(plan, ours.forward._shape, 4)), 4, logits)
    torch.testing.assert_close(logits[:3].cpu(), theirs.forward.logits(plan, np.arange(3)), atol=1e-4, rtol=1e-4)


def test_graphs_are_captured_with_adapters_and_without_and_each_step_replays_its_own(monkeypatch):
    replayed, captured = [], []

    class Graph:
        def pool(self):
            return None

        def replay(self):
            replayed.append(captured[self.number])

    def compute(sent, rows, _logits):
        Graph.number = len(captured)
        captured.append((rows, ADAPTED in sent))

    def kept(graph, **_named):
        graph.number = len(captured)
        return nullcontext()

    for name, value in (("CUDAGraph", Graph), ("graph", kept), ("synchronize", lambda: None)):
        monkeypatch.setattr(torch.cuda, name, value)
    graphs = DecodeGraphs(Shape(BLOCK, (None,), 256, 64, spare_row=7), 8, 64, torch.zeros(4, 9))
    graphs.capture((1, 2, 4), compute, lambda _share: None, adapted=True)
    assert captured[::2] == [(rows, adapted) for rows in (4, 2, 1) for adapted in (True, False)]  # each is computed once before
    plan, staging = Batch(prompts(200, (1, 1))).step((1, 1)), Staging(torch.device("cpu"))
    for adapters in (None, np.array([0, 1], np.int32)):
        assert graphs.replay(replace(plan, adapters=adapters), 2, staging).shape == (2, 9)
    assert replayed == [(2, False), (2, True)]


def test_warming_leaves_all_blocks_but_the_spare_one_alone():
    ours, _ = workers(shape())
    ours.forward.kv.data.fill_(7)
    warm(ours)
    changed = (ours.forward.kv.data != 7).any(-1).any(-1).nonzero()[:, 2].unique().tolist()
    assert changed == [BLOCKS * BLOCK, BLOCKS * BLOCK + 1]


def test_kernels_that_cannot_be_compiled_are_a_reason_to_use_torch(monkeypatch):
    def refuse(*_arguments, **_named):
        raise RuntimeError("out of resource: shared memory")

    spec, engine, place = shape(windows=(None, 20)), EngineConfig(), torch.device(device())
    assert load._not_compiled(spec, engine, place) is None
    monkeypatch.setattr(attending, "paged_attention_prefill", refuse)
    assert load._not_compiled(spec, engine, place) == "Triton kernels do not run here: RuntimeError: out of resource: shared memory"


def test_a_graph_is_for_steps_whose_logits_are_wanted_in_the_order_of_the_rows():
    ours, _ = workers(shape())
    forward, plan = ours.forward, Batch(prompts(200, (1, 1))).step((1, 1))
    forward._graphs, forward._buckets = SimpleNamespace(replay=lambda *_: "the graph's"), (1, 2, 4)
    assert forward._replayed(plan, np.array([0, 1])) == "the graph's"
    assert forward._replayed(plan, np.array([1, 0])) is None, "a scored prompt of one token stands behind those that sample"
    assert forward._replayed(plan, np.array([1])) is None
    assert forward._replayed(replace(plan, adapters=np.array([1, 0], np.int32)), np.array([0, 1])) == "the graph's"


def test_a_seed_gives_the_same_tokens_whatever_the_neighbours_ask_for():
    ours, _ = workers(shape(vocab_size=700))
    hot = np.stack([draw_of(Sampling(1, temperature=1.0), 7), draw_of(Sampling(1), 0)])
    asked = [SamplingRows(random=hot), SamplingRows(random=hot, top_logprobs=np.array([-1, 2], np.int32))]
    found = []
    for sampling in asked:
        batch = Batch(prompts(700, (5, 9)))
        steps = [batch.step((5, 9), lambda _rows, one=sampling: one), batch.step((1, 1), lambda _rows, one=sampling: one)]
        found.append([ours.execute(plan).token_ids.tolist() for plan in steps])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"head_dim": 80}, "heads of 80: the fused ops know 16, 32, 64, 128, 256"),
        ({"heads": 128, "kv_heads": 1}, "128 query heads per key head: the fused ops know at most 64"),
        ({"experts": Experts(1025, 2, 48, True, FAMILIES["Qwen3MoeForCausalLM"].experts)}, "1025 experts: the fused ops know at most 1024"),
    ],
)
def test_models_that_the_kernels_cannot_compute_are_left_to_torch(changes, told):
    assert not_fused(shape(**changes)) == told


def test_blocks_are_copied_before_a_step_writes():
    ours, theirs = workers(spec := shape())
    batch = Batch(prompts(spec.vocab_size, (17, 9)))
    first, old = batch.step((17, 9)), batch.tables[0, :2].copy()
    new = batch.tables[0, 5:7].copy()
    batch.tables[0, :2] = new  # the two blocks that the first row has filled move
    second = replace(batch.step((1, 1)), copies=np.stack((old, new), axis=1).astype(np.int32))
    for plan in (first, second):
        same(ours.execute(plan), theirs.execute(plan))


def test_a_step_may_be_launched_before_the_one_that_samples_its_tokens_is_heard():
    ours, theirs = workers(spec := shape())
    batch = Batch(prompts(spec.vocab_size, (5, 9)))
    plans = [batch.step((5, 9)), *(batch.step((1, 1)) for _ in range(3))]
    launched = [ours.launch(plan) for plan in plans]
    for plan, one in zip(plans, launched, strict=True):
        same(one.result(), theirs.execute(plan))


def test_what_the_host_samples_knows_the_tokens_that_the_device_sampled_before():
    ours, theirs = workers(spec := shape())
    batch = Batch(prompts(spec.vocab_size, (5, 9)))
    logprobs = lambda rows: SamplingRows(top_logprobs=np.full(rows, 2, np.int32))  # noqa: E731
    plans = [batch.step((5, 9)), batch.step((1, 1)), batch.step((1, 1), logprobs), batch.step((1, 1))]
    for plan, one in zip(plans, [ours.launch(plan) for plan in plans], strict=True):
        expected, found = theirs.execute(plan), one.result()
        same(found, expected)
        if expected.logprobs is not None:
            assert found.logprobs.top_ids.tolist() == expected.logprobs.top_ids.tolist()
            np.testing.assert_allclose(found.logprobs.logprob, expected.logprobs.logprob, atol=1e-4)


def test_drawn_tokens_are_those_of_the_sampler_on_the_host():
    ours, theirs = workers(spec := shape(vocab_size=700))  # small ones are drawn in another way on the host
    batch = Batch(prompts(spec.vocab_size, (5, 9, 3)))
    drawn = [Sampling(1, temperature=0.8, top_k=5), Sampling(1), Sampling(1, temperature=0.3, top_p=0.7, min_p=0.01)]
    rows = lambda _count: SamplingRows(random=np.stack([draw_of(one, seed) for seed, one in enumerate(drawn)]))  # noqa: E731
    for plan in (batch.step((5, 9, 3), rows), batch.step((1, 1, 1), rows)):
        same(ours.execute(plan), theirs.execute(plan))


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered")  # numpy of its own maximum, in the interpreter
def test_a_row_of_numbers_that_are_none_fails_alone():
    ours, theirs = workers(spec := shape())
    batch = Batch(prompts(spec.vocab_size, (5, 9)))
    for worker in (ours, theirs):
        # What a row looks back on, not its neighbour's.
        worker.forward.kv.data[:, :, batch.tables[0][0] * BLOCK] = torch.nan
    batch.fed[0] = 4
    plan = batch.step((1, 9))
    found = ours.execute(plan)
    assert [error.row for error in found.errors] == [0]
    same(found, theirs.execute(plan))


def test_a_number_that_is_no_token_does_not_end_the_device():
    ours, _ = workers(spec := shape())
    batch = Batch(prompts(spec.vocab_size, (5, 9)))
    ours.execute(batch.step((5, 9)))
    ours.forward.note(*(torch.tensor([0], dtype=dtype, device=device()) + add for dtype, add in ((torch.int64, 0), (torch.int32, 10**9))))
    assert ours.execute(batch.step((1, 1))).rows.tolist() == [0, 1]


def test_a_deep_check_finds_memory_that_changed_since_the_last_one_and_no_request_hears_of_it():
    ours, theirs = workers(spec := shape())
    batch, limits = Batch(prompts(spec.vocab_size, (5,))), Limits.of(ours.limits, ROWS, 64)

    def step(counts, *, checked=True):
        plan = batch.step(counts)
        plan = with_extra_row(plan, DeepCheckPrompt(1, (3, 4)), limits) if checked else plan
        found = ours.execute(plan)
        others, answer = without_extra_row(found, ROWS)
        expected = without_extra_row(theirs.execute(plan), ROWS)
        same(others, expected[0])
        assert answer.token == expected[1].token
        return answer.error

    assert step((5,)) is None
    ours._memory._ours[1000] ^= 1 << 30
    assert step((1,), checked=False) is None, "only a deep check looks"
    assert step((1,)) == "1 of 262144 words of a test pattern in the device's memory have changed"


def test_every_bit_of_the_pattern_is_turned_by_each_check_and_each_word_is_its_own():
    pattern = MemoryPattern(torch.device(device()))
    first = pattern._ours.clone()
    assert first.unique().numel() == first.numel()
    assert pattern.finding(pattern.check()) is None
    assert bool((pattern._ours ^ first == -1).all())
    pattern._ours.copy_(pattern._ours.roll(1))
    assert pattern.finding(pattern.check()) is not None, "words that lie in one another's places"
    assert (
        pattern.finding(pattern.check())
        == f"{first.numel()} of {first.numel()} words of a test pattern in the device's memory have changed"
    ), "for good"


def test_a_kernel_that_is_compiled_after_the_load_is_logged_and_counted_with_the_step_that_waited(monkeypatch):
    hook, heard = "jit_post_compile_hook", []
    monkeypatch.setattr(knobs.runtime, hook, lambda **told: heard.append(told["fn"].name))
    ours, theirs = workers(spec := shape())
    ours.watch_compiler()
    batch = Batch(prompts(spec.vocab_size, (5, 9, 8)))
    plans = [batch.step((5, 9, 0)), batch.step((1, 1, 4)), batch.step((1, 1, 4))]  # prompts in each: on a GPU the others are graphs
    states = ours.forward.states

    def compiles(plan, wanted):
        if plan is plans[1]:
            for name in ("_scan", "_choose"):
                getattr(knobs.runtime, hook)(fn=SimpleNamespace(name=name))
        return states(plan, wanted)

    monkeypatch.setattr(ours.forward, "states", compiles)
    with structlog.testing.capture_logs() as logs:
        found = [ours.execute(plan) for plan in plans]
    for one, plan in zip(found, plans, strict=True):
        same(one, theirs.execute(plan))
    assert [one.compiled for one in found] == [0, 2, 0]
    assert [line["kernel"] for line in logs] == heard == ["_scan", "_choose"], "whoever had a hook before keeps it"


def test_every_array_begins_at_sixteen_bytes_and_none_overlaps_another():
    batch = Batch(prompts(200, (5, 9, 3)))
    batch.step((5, 9, 3))
    (one,) = {ours.forward._shape for ours in [workers(shape(windows=(None, 20)))[0]]}
    arrays = decode_arrays(batch.step((1, 1, 1)), one, 8)
    where = places(arrays)
    assert all(place.start % 4 == 0 for place in where.values())
    buffer = np.zeros(max(place.stop for place in where.values()), np.int32)
    fill(buffer, arrays, where)
    for name, array in arrays.items():
        assert buffer[where[name]].view(array.dtype).tolist() == array.tolist(), name


def test_padding_has_no_context_no_slot_and_a_row_of_nobody():
    batch = Batch(prompts(200, (5, 9)))
    batch.step((5, 9))
    ours, _ = workers(shape())
    arrays = decode_arrays(batch.step((1, 1)), ours.forward._shape, 4)
    assert arrays["lengths"].tolist() == [6, 10, 0, 0]
    assert arrays["slots"][2:].tolist() == [-1, -1]
    assert arrays["rows"].tolist() == [0, 1, ROWS + 1, ROWS + 1]


def test_rows_with_adapters_stand_in_the_arrays_of_their_step():
    batch, (one,) = Batch(prompts(200, (5, 9, 3))), {ours.forward._shape for ours in [workers(shape())[0]]}
    prompt = replace(batch.step((5, 9, 3)), adapters=np.array([2, 0, 1], np.int32))
    arrays = mixed_arrays(prompt, one, np.array([13, 16]))
    assert arrays[ADAPTED].tolist() == [14, 15, 16, 0, 1, 2, 3, 4]
    assert arrays[tiles_name(ADAPTED)].tolist() == [2, 1, 0, 3, 2, 3, 8]
    assert arrays[ADAPTED_WANTED].tolist() == [1]
    assert arrays[tiles_name(ADAPTED_WANTED)].tolist() == [1, 1, 0, 1]
    rows = replace(batch.step((1, 1, 1)), adapters=np.array([2, 0, 1], np.int32))
    arrays = decode_arrays(rows, one, 4)
    assert arrays[ADAPTED].tolist() == [2, 0, 0, 0]
    assert arrays[tiles_name(ADAPTED)].tolist() == [2, 1, 0, 1, 2, 1, 2] + [0] * 6
    assert ADAPTED not in decode_arrays(replace(rows, adapters=None), one, 4)


def test_staged_arrays_arrive_in_their_types_however_many_are_sent():
    staged = Staging(torch.device(device()))
    for size in (3, 100_000, 5):
        sent = staged.send(
            {"a": np.arange(size, dtype=np.int64), "b": np.arange(size, dtype=np.float32), "c": np.arange(1, dtype=np.int32)}
        )
        assert [sent[name].dtype for name in "abc"] == [torch.int64, torch.float32, torch.int32]
        assert sent["a"].tolist() == list(range(size))
        assert sent["b"].tolist() == list(range(size))


def test_a_bucket_holds_its_rows_and_is_at_most_half_larger_where_there_are_many():
    found = buckets(200)
    assert found[-1] == 200
    assert bucket_of(201, found) is None
    for rows in range(1, 201):
        bucket = bucket_of(rows, found)
        assert rows <= bucket
        assert rows <= 32 or bucket <= rows * 3 / 2


def test_rows_that_feed_one_token_lead_until_the_first_that_feeds_more():
    batch = Batch(prompts(200, (1, 9, 1)))
    assert leading(batch.step((1, 0, 0))) == 1
    assert leading(batch.step((1, 9, 1))) == 1


def test_sizing_counts_the_buffers_of_the_host_that_a_daemon_on_a_device_makes():
    assert STAGED == files._STAGING + staging._BUFFERS * 4 * staging._WORDS
