"""Embeddings through the scheduler: whatever the chunks, the company and the preemptions, each token of a prompt counts once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.simulated.device.worker import STATE, SimulatedWorker
from support.engine.drive import Drive
from support.suite.profiles import examples

VOCAB = 97


def expected(prompt, pooling):
    taken = prompt if pooling == "mean" else prompt[-1:]
    counts = np.bincount([token % STATE for token in taken], minlength=STATE)
    return counts / np.linalg.norm(counts)


PROMPTS = st.lists(st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=50), st.sampled_from(["mean", "last"])), max_size=6)


@pytest.mark.deep
@settings(max_examples=examples(40), deadline=None)
@given(PROMPTS, st.integers(1, 40), st.integers(1, 3), st.integers(16, 40), st.integers(1, 2))
def test_vectors_do_not_depend_on_the_schedule(prompts, budget, rows, blocks, depth):
    d = Drive(SimulatedWorker(WorkerLimits(blocks, 4, VOCAB, 64)), rows, max(budget, rows), depth=depth)
    for i, (prompt, pooling) in enumerate(prompts):
        d.submit(f"e{i}", prompt, Sampling(1, pooling=pooling), tier="batch")
        d.submit(f"again{i}", prompt, Sampling(1, pooling=pooling))
        d.submit(f"plain{i}", prompt, 9)
        d.step()
    d.drain()
    for i, (prompt, pooling) in enumerate(prompts):
        for name in (f"e{i}", f"again{i}"):
            (end,) = d.ends[name]
            np.testing.assert_allclose(np.frombuffer(end.embedding, "<f4"), expected(prompt, pooling), atol=1e-6)
        assert d.ends[f"plain{i}"][0].embedding == b""


def test_a_last_state_uses_what_is_known_of_its_beginning_and_a_mean_does_not():
    d = Drive(SimulatedWorker(WorkerLimits(64, 4, VOCAB, 64)), 8, 64)
    for name, pooling in (("first", "last"), ("last", "last"), ("mean", "mean")):
        before = sum(step.tokens for step in d.plans)
        d.submit(name, range(40), Sampling(1, pooling=pooling))
        d.drain()
        fed = sum(step.tokens for step in d.plans) - before
        assert fed == 40 if name != "last" else fed <= 4, (name, fed)


class NotFinite(SimulatedWorker):
    def execute(self, plan):
        result = super().execute(plan)
        if result.pooled is not None:
            result.pooled.sums[:] = np.nan
        return result


def test_a_vector_that_is_not_finite_ends_its_request_alone():
    d = Drive(NotFinite(WorkerLimits(64, 4, VOCAB, 64)), 8, 64)
    d.submit("e", range(9), Sampling(1, pooling="mean"))
    d.submit("plain", range(9), 3)
    d.drain()
    assert (d.ends["e"][0].finish_reason, d.ends["e"][0].embedding) == ("error", b"")
    assert d.ends["plain"][0].finish_reason == "length"


@pytest.mark.parametrize("changes", [{"n": 2}, {"sampling": Sampling(1, pooling="mean", prompt_logprobs=1)}])
def test_what_cannot_be_pooled_is_refused(changes):
    d = Drive(SimulatedWorker(WorkerLimits(64, 4, VOCAB, 64)), 8, 64)
    d.submit("e", [1, 2], changes.pop("sampling", Sampling(1, pooling="mean")), **changes)
    assert d.ends["e"][0].error.startswith("never_fits")
