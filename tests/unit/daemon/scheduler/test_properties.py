"""Whatever the budget, rows, pool, arrivals and aborts: each request ends once, with the tokens its model dictates.

The simulated worker reads tokens back through block tables, so a wrong table, position or recompute shows as a wrong stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.admission import REFUSED, abort
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.drive import Drive
from support.engine.shaped_worker import ShapedWorker, shaped_tokens
from support.suite.profiles import examples

VOCAB, MAX_LEN = 97, 64


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    max_tokens: int
    stops: tuple[int, ...]
    arrives: int
    aborted_at: int | None
    abort_in_flight: bool
    shaped: bool
    spoken: bool
    scored: bool

    @property
    def sampling(self) -> Sampling:
        penalty, top = (2.0 if self.shaped else 0.0), (1 if self.spoken else None)
        scores = 0 if self.scored else None
        return Sampling(self.max_tokens, stop_token_ids=self.stops, presence_penalty=penalty, logprobs=top, prompt_logprobs=scores)


@dataclass(frozen=True)
class Harness:
    blocks: int
    block_size: int
    rows: int
    budget: int
    ahead: bool
    caching: bool
    jobs: tuple[Job, ...]


jobs = st.builds(
    Job,
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40).map(tuple),
    max_tokens=st.integers(1, 24),
    stops=st.lists(st.integers(0, VOCAB - 1), max_size=3).map(tuple),
    arrives=st.integers(0, 30),
    aborted_at=st.none() | st.integers(0, 40),
    abort_in_flight=st.booleans(),
    shaped=st.sampled_from((False, False, True)),
    spoken=st.booleans(),
    scored=st.booleans(),
)
harness = st.builds(
    Harness,
    blocks=st.integers(1, 40),
    block_size=st.sampled_from((1, 2, 4, 16)),
    rows=st.integers(1, 6),
    budget=st.integers(1, 48),
    ahead=st.booleans(),
    caching=st.booleans(),
    jobs=st.lists(jobs, min_size=1, max_size=12).map(tuple),
)


def dictated(job: Job) -> tuple[tuple[int, ...], str]:
    """What the model says, and how the stream ends."""
    stream = (shaped_tokens if job.shaped else expected_tokens)(job.prompt, job.max_tokens, VOCAB)
    for place, token in enumerate(stream):
        if token in job.stops:
            return stream[: place + 1], "stop"
    return stream, "length"


class Run:
    """One run from first arrival to drained, with the invariants looked at after every plan."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        worker = ShapedWorker(WorkerLimits(harness.blocks, harness.block_size, VOCAB, MAX_LEN))
        self.drive = Drive(worker, harness.rows, harness.budget, depth=1 + harness.ahead, prefix_caching=harness.caching)
        self.aborted: set[str] = set()
        self.decoding: dict[str, int] = {}

    def play(self) -> Drive:
        for now in range(5000):
            for name, job in self.named():
                if job.arrives == now:
                    self.drive.submit(name, job.prompt, job.sampling)
            self.abort(now, in_flight=False)
            self.drive.step(lambda step, now=now: self.in_flight(step, now))
            self.drive.state.check()
            if now > 41 and self.drive.state.idle:
                return self.drive
        raise AssertionError(f"not drained: {self.drive.state.stats()}")

    def named(self) -> list[tuple[str, Job]]:
        return [(f"r{i}", job) for i, job in enumerate(self.harness.jobs)]

    def abort(self, now: int, *, in_flight: bool) -> None:
        for name, job in self.named():
            if job.aborted_at == now and job.abort_in_flight is in_flight:
                self.aborted.add(name)
                self.drive.take(abort(self.drive.state, name))

    def in_flight(self, step: StepPlan, now: int) -> None:
        self.within_limits(step)
        self.abort(now, in_flight=True)

    def within_limits(self, step: StepPlan) -> None:
        state = self.drive.state
        assert 1 <= step.tokens <= max(self.harness.budget, self.harness.rows)
        assert len(set(step.rows.tolist())) == step.rows.size <= self.harness.rows
        assert (np.diff(step.starts) >= 1).all()
        self.decodes_advance(state)

    def decodes_advance(self, state: State) -> None:
        """A request that had a token and kept its row gets its next one in the very next step: no gap exceeds one step."""
        behind = set(np.flatnonzero(state.rows.live & (state.rows.need() == 1)).tolist()) - set(state.in_flight[-1].plan.rows.tolist())
        assert not behind, f"rows that could decode were left out: {behind}"


def scores(drive: Drive, name: str) -> int:
    return sum(len(output.prompt_logprobs) for output in drive.outputs if output.request_id == name)


def spoken(drive: Drive, name: str) -> int:
    return sum(len(output.logprobs) for output in drive.outputs if output.request_id == name)


@pytest.mark.deep
@settings(max_examples=examples(80), deadline=None)
@given(harness)
def test_every_request_ends_once_with_the_expected_tokens(harness: Harness) -> None:
    run = Run(harness)
    drive = run.play()
    for name, job in run.named():
        (end,) = drive.ends[name]
        stream, reason = dictated(job)
        got = tuple(drive.tokens[name])
        if end.finish_reason == "error":
            assert end.error is not None
            assert end.error.startswith(REFUSED)
            assert len(job.prompt) + job.max_tokens > MAX_LEN or len(job.prompt) + job.max_tokens - 1 > harness.blocks * harness.block_size
        elif end.finish_reason == "abort":
            assert name in run.aborted
            assert got == stream[: len(got)]
        else:
            assert (got, end.finish_reason) == (stream, reason)
            assert scores(drive, name) == (len(job.prompt) - 1 if job.scored else 0)
        assert spoken(drive, name) == (len(got) if job.spoken else 0)
    assert drive.state.kv.pool.free == harness.blocks


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=10), st.integers(1, 40))
def test_requests_start_in_order_of_arrival(lengths: list[int], budget: int) -> None:
    drive = Drive(SimulatedWorker(WorkerLimits(200, 4, VOCAB, MAX_LEN)), max_concurrency=3, token_budget=budget)
    first: list[str] = []
    for i, length in enumerate(lengths):
        drive.submit(f"r{i}", [i] * length, 4)
    while drive.step(lambda _: first.extend(name for name in drive.state.row_of if name not in first)):
        pass
    assert first == [f"r{i}" for i in range(len(lengths))]
