"""Engine: the loop of the engine process. Hears the front, plans, lets the device compute, commits, reports to the front.

Called by `engine.__main__`; everything that decides is in `scheduler`, everything that computes in `runner`. While loading and
while a step computes the loop keeps listening and beating; when idle it blocks in one poll.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable
from typing import Protocol, assert_never

import structlog
from pagoda_contracts.launch import EngineConfig

from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import (
    Abort,
    AdapterLoaded,
    DeepCheckAnswer,
    DeepCheckPrompt,
    Heartbeat,
    LoadAdapter,
    Loading,
    Prefixes,
    Ready,
    Refusal,
    ReleaseAdapter,
    RowOutput,
    Shutdown,
    Stats,
    StepOutput,
    Submit,
    Tally,
    ToEngine,
)
from pagoda_daemon.core.sampling import random_of
from pagoda_daemon.engine.adapters import AdapterLoads, uses
from pagoda_daemon.engine.build import Progress
from pagoda_daemon.engine.device import Device
from pagoda_daemon.engine.exits import EXIT_FAILED, EXIT_OK, exit_code, failure
from pagoda_daemon.engine.grammars import Grammars, MakePool
from pagoda_daemon.engine.outcomes import Loaded, LoadFailed, Outcome, StepFailed
from pagoda_daemon.engine.wire import EngineWire
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.scheduler.admission import Arrival, abort, expire, knows, submit
from pagoda_daemon.scheduler.commit import commit, fail_step
from pagoda_daemon.scheduler.deep_check import take_in
from pagoda_daemon.scheduler.grammars import wait_ms
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import may_plan_ahead, plan
from pagoda_daemon.scheduler.state import State

IDLE_BEAT_MS = 250
BUSY_BEAT_MS = 100
STEP_FAILED = "the engine could not compute this request"  # what the device said is for the log: clients get no paths and no sizes
NO_MEMORY = Refusal("memory_pressure", 1.0, "the device had no memory for this request")

_log = structlog.get_logger(__name__)


class CacheEvents(Protocol):
    """Reports to readers outside which blocks were stored and removed."""

    def begin(self, state: State) -> None:
        """Before the first block is used."""
        ...

    def publish_changes(self, state: State) -> None:
        """What happened since it was last asked. Never blocks."""
        ...


class Engine:
    """Made with a wire, a clock in monotonic milliseconds, what builds the worker, and what makes a pool for grammars."""

    def __init__(
        self,
        wire: EngineWire,
        config: EngineConfig,
        build: Callable[[Progress], Worker],
        clock_ms: Callable[[], float],
        make_pool: MakePool | None = None,
    ) -> None:
        self._wire = wire
        self._config = config
        self._clock_ms = clock_ms
        self._progress = 0.0
        self._early: list[ToEngine] = []
        self._state: State | None = None
        self._step_started_ms = 0.0
        self._beat_ms = clock_ms()
        self._exit: int | None = None
        self._stopping = False
        self._seeds = random_of(config.seed)
        self._luck = random.Random(secrets.randbits(64))  # noqa: S311  which request is shed is not secret
        self._device = Device(lambda: build(self._note_progress))
        self._grammars = Grammars(make_pool, wire.watch)
        self._adapters = AdapterLoads(wire.watch, self._device.between_steps)
        self._masks_due_ms = math.inf
        self._events: CacheEvents | None = None
        wire.watch(self._device.fileno())

    def publish(self, events: CacheEvents | None) -> None:
        """Reports changes of the cache through `events`, from the start; to be called before `run`."""
        self._events = events

    def run(self, orphaned: Callable[[], bool]) -> int:
        """Until shut down, failed, or `orphaned`: the exit code."""
        self._wire.send(Loading(0.0))
        while self._exit is None:
            self._wire.wait(min(self._beat_ms + IDLE_BEAT_MS - self._clock_ms(), self._masks_due_ms))
            for message in self._wire.received():
                self._hear(message)
            outcome = self._device.outcome()
            if outcome is not None:
                self._take(outcome)
            if self._state is not None:
                self._constrain(self._state)
                self._send_answers(*self._adapters.hear(self._state))
            self._next()
            if self._clock_ms() - self._beat_ms >= IDLE_BEAT_MS:
                self._beat()
                if orphaned():
                    self._exit = EXIT_FAILED
        self._device.stop()
        self._grammars.stop()
        return self._exit

    def _note_progress(self, done: float) -> None:
        # Written by the device's thread, read by the loop's: one float, no lock needed.
        self._progress = done

    def _hear(self, message: ToEngine) -> None:
        match message:
            case Shutdown():
                self._stopping = True
                if self._state is not None:
                    self._state.draining = True
            case _ if self._state is None:
                self._early.append(message)
            case DeepCheckPrompt():
                self._send_answers(take_in(self._state, message))
            case LoadAdapter() | ReleaseAdapter():
                self._send_answers(self._adapters.take(self._state, message))
            case Submit():
                self._submit(self._state, message)
            case Abort():
                self._send_outputs(self._state, abort(self._state, message.request_id, message.index))
            case _:
                assert_never(message)

    def _submit(self, state: State, message: Submit) -> None:
        if knows(state, message.request_id):
            _log.error("duplicate request id dropped", request_id=message.request_id)
            return
        refused = self._grammars.refusal(state, message, self._clock_ms())
        if refused is None and not self._grammars.take(state, message, self._clock_ms()):
            self._admit(state, message)
        self._send_outputs(state, [refused] if refused else [])

    def _admit(self, state: State, message: Submit) -> None:
        refused = submit(state, message, Arrival(self._clock_ms(), self._seeds.getrandbits(64), self._luck.random()))
        self._send_outputs(state, [refused] if refused else [])

    def _constrain(self, state: State) -> None:
        """Verdicts and masks that came."""
        passed, outputs = self._grammars.hear(state, self._clock_ms())
        for message in passed:
            self._admit(state, message)
        self._send_outputs(state, outputs)

    def _take(self, outcome: Outcome) -> None:
        match outcome:
            case Loaded(limits, adapters):
                self._open(limits, adapters)
            case LoadFailed(error):
                self._fail(error)
            case StepResult() if self._state is not None:
                self._commit(self._state, outcome)
            case StepFailed() if self._state is not None:
                self._lose(self._state, outcome)

    def _open(self, limits: WorkerLimits, adapters: AdapterStore | None) -> None:
        config = self._config.at(cuda=bool(limits.device))
        caching = config.prefix_caching is not False
        self._state = State(Limits.of(limits, config.max_concurrency, config.token_budget, prefix_caching=caching))
        if self._events is not None:
            self._events.begin(self._state)
        self._wire.send(Loading(1.0))
        pool = (limits.max_model_len, limits.vocab_size, limits.block_size, limits.blocks_total)
        served = self._adapters.open(self._state, adapters)
        self._wire.send(Ready(*pool, config.max_concurrency, limits.computed_by, limits.model, served, limits.device))
        self._beat()
        early, self._early = self._early, []
        for message in early:
            self._hear(message)

    def _commit(self, state: State, result: StepResult) -> None:
        outputs = commit(state, result, self._clock_ms())
        self._landed(state)
        self._send_outputs(state, outputs)
        if (slow := state.slow.take(self._clock_ms())) is not None:
            _log.warning("slow_step", **slow)
        if self._events is not None:
            self._events.publish_changes(state)
        self._send_answers(state.take_deep_check_answer())
        if state.idle:
            # Off anyone's critical path, and a leak shows at the first pause instead of hours later as a full pool.
            state.check()

    def _lose(self, state: State, failed: StepFailed) -> None:
        no_memory = isinstance(failed.error, MemoryError) or type(failed.error).__name__ == "OutOfMemoryError"  # torch's, unimported here
        ended = fail_step(state, STEP_FAILED, NO_MEMORY if no_memory else None)
        self._landed(state)
        what = f"{type(failed.error).__name__}: {failed.error}"
        _log.error("step failed", error=what, alive=failed.alive, requests=[row.request_id for row in ended], exc_info=failed.error)
        self._send_outputs(state, ended)
        self._send_answers(state.take_deep_check_answer())
        if not failed.alive:
            self._fail(RuntimeError(f"the worker fails its probe after: {what}"))

    def _landed(self, state: State) -> None:
        """A step that was planned ahead began when this one ended."""
        self._step_started_ms = self._clock_ms() if state.in_flight else 0.0

    def _next(self) -> None:
        """Plan for an idle device, then one step ahead where that is worth it."""
        state = self._state
        if self._stopping and (state is None or not state.in_flight):
            self._exit = EXIT_OK if self._exit is None else self._exit
        if state is None or self._stopping or self._exit is not None:
            return
        self._send_outputs(state, expire(state, self._clock_ms()))
        self._adapters.tidy(state)
        if (left := wait_ms(state, self._clock_ms())) > 0:
            self._masks_due_ms = left
            return
        self._masks_due_ms = math.inf
        while not state.in_flight or (len(state.in_flight) == 1 and may_plan_ahead(state)):
            step = plan(state, self._clock_ms())
            self._grammars.planned(state, self._clock_ms())
            if step is None:
                return
            self._start(state, step)

    def _start(self, state: State, step: StepPlan) -> None:
        if len(state.in_flight) == 1:
            self._step_started_ms = self._clock_ms()
        self._device.start(step)
        if self._clock_ms() - self._beat_ms >= BUSY_BEAT_MS:
            self._beat()

    def _send_outputs(self, state: State, outputs: list[RowOutput]) -> None:
        if outputs:
            self._wire.send(StepOutput(tuple(outputs), state.stats()))
            self._grammars.advance(outputs, self._clock_ms())

    def _send_answers(self, *answers: DeepCheckAnswer | AdapterLoaded | None) -> None:
        for answer in answers:
            if answer is not None:
                self._wire.send(answer)

    def _beat(self) -> None:
        self._beat_ms = self._clock_ms()
        state, predicted, stats, tally, cost = self._state, 0, Stats(), Tally(), (0.0, 0.0, 0.0)
        adapters = () if state is None else uses(state)
        if state is None:
            self._wire.send(Loading(self._progress))
        else:
            stats, tally = state.stats(), state.tally()
            predicted, cost = state.predicted_step_ms(), state.step_cost.parts_us()
            self._send_cache_changes(state)
        self._wire.send(Heartbeat(int(self._beat_ms), int(self._step_started_ms), predicted, stats, tally, cost, adapters))

    def _send_cache_changes(self, state: State) -> None:
        """What the cache has and lost since the last beat. Nothing is done if no reader asked."""
        resident, evicted = state.kv.text_prefixes.take()
        if resident or evicted:
            self._wire.send(Prefixes(resident, evicted))
        if self._events is not None:
            self._events.publish_changes(state)

    def _fail(self, error: Exception) -> None:
        message = failure(error)
        _log.error(
            "engine failed",
            reason=message.reason,
            error=message.message,
            permanent=message.permanent,
            exc_info=None if message.permanent else error,
        )
        self._wire.send(message)
        self._exit = exit_code(message)
