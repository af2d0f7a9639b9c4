"""Desk between the loop, the scheduler's state and the pool of grammar workers: who waits for a verdict, who needs a matcher, who has a
mask. Used by `engine.loop` only; makes the pool when the first constrained request comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec
import structlog

from pagoda_daemon.nouns.batch import WorkerLimits
from pagoda_daemon.nouns.messages import Refusal, RowOutput, Submit
from pagoda_daemon.scheduler.grammars import finish, offer, take_unwatched
from pagoda_daemon.scheduler.request import choice_key
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.structured.pool import Broken, Mask, Pool, Tried

_log = structlog.get_logger(__name__)

# Rows hold a matcher each, and so do requests that were preempted: far fewer than this.
_SLOTS_PER_ROW: Final = 16

MakePool = Callable[[WorkerLimits, int], Pool]
"""The worker's limits and how many answers at a time → a pool."""


def pool_maker(tokenizer: Path, cores: int) -> MakePool:
    """Pools of one worker for newcomers and one for every two cores."""
    return lambda limits, slots: Pool(tokenizer, limits.vocab_size, max(1, min(4, cores // 2)), slots)


class Grammars:
    """`watch` is called with the pool's file when there is one."""

    def __init__(self, make: MakePool | None, watch: Callable[[int], None]) -> None:
        self._make = make
        self._watch = watch
        self._pool: Pool | None = None
        self._trials: dict[str, Submit] = {}

    def holds(self, request_id: str) -> bool:
        """A request under this id waits for the verdict on its grammar."""
        return request_id in self._trials

    def take(self, message: Submit, now_ms: float) -> bool:
        """Whether the request has to wait here first. It was not refused."""
        if message.grammar is None or self._pool is None:
            return False
        self._trials[message.request_id] = message
        self._pool.try_out(message.request_id, message.grammar, now_ms)
        self._pool.push(now_ms)
        return True

    def refusal(self, state: State, message: Submit) -> RowOutput | None:
        """For a request with a grammar where there can be no workers at all."""
        if message.grammar is None or self._opened(state):
            return None
        return _refused(message.request_id, "this replica has none")

    def _opened(self, state: State) -> bool:
        if self._pool is None and self._make is not None:
            try:
                self._pool = self._make(state.limits.worker, _SLOTS_PER_ROW * state.limits.max_concurrency)
            except OSError as error:
                _log.warning("no pool for grammars", error=str(error))
                return False
            self._watch(self._pool.fileno())
        return self._pool is not None

    def forget(self, request_id: str, now_ms: float) -> None:
        """The client of a request that waits here is gone."""
        if self._trials.pop(request_id, None) is not None and self._pool is not None:
            self._pool.close(request_id, now_ms)

    def planned(self, state: State, now_ms: float) -> None:
        """After each plan: who was given a row needs a matcher."""
        if self._pool is not None and state.unwatched:
            for request in take_unwatched(state):
                if request.grammar is not None:
                    self._pool.open(request.key, request.grammar, now_ms)
            self._pool.push(now_ms)

    def told(self, outputs: Iterable[RowOutput], now_ms: float) -> None:
        """What the front is told of, the matchers are."""
        pool = self._pool
        if pool is None:
            return
        for output in outputs:
            key = choice_key(output.request_id, output.index)
            if output.finish_reason is not None:
                pool.close(key, now_ms)
            elif output.token_ids:
                pool.advance(key, output.token_ids, now_ms)
        pool.push(now_ms)

    def hear(self, state: State, now_ms: float) -> tuple[list[Submit], list[RowOutput]]:
        """What the workers said: requests whose grammar passed, and outputs for those that end by their grammar."""
        passed: list[Submit] = []
        outputs: list[RowOutput] = []
        for outcome in self._pool.outcomes(now_ms) if self._pool is not None else ():
            match outcome:
                case Tried(name, why):
                    message = self._trials.pop(name, None)
                    if message is not None and why is None:
                        passed.append(message)
                    elif message is not None:
                        outputs.append(_refused(name, why or ""))
                case Mask(name, _, words, standing):
                    if standing == "complete":
                        outputs += finish(state, name, "stop")
                    else:
                        offer(state, name, words, accepting=standing == "accepting")
                case Broken(name, why, own):
                    outputs += _broken(finish(state, name, "error", f"the grammar cannot be followed any further: {why}"), own=own)
        return passed, outputs

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool = None


def _broken(ended: list[RowOutput], *, own: bool) -> list[RowOutput]:
    """What its own grammar ended is told like a grammar that was refused at once."""
    if not own:
        return ended
    return [msgspec.structs.replace(row, refusal=Refusal("grammar", 0.0, row.error or "")) for row in ended]


def _refused(request_id: str, why: str) -> RowOutput:
    return RowOutput(request_id, (), "refused", refusal=Refusal("grammar", 0.0, f"the grammar cannot be used: {why}"))
