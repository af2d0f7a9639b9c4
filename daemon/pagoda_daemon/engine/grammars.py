"""Desk between the loop, the scheduler's state and the pool of grammar workers: which grammar is compiled next, which answer needs a
matcher or has a mask. Used by `engine.loop` only; makes the pool when the first constrained request comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import structlog

from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.messages import Refusal, RowOutput, Submit
from pagoda_daemon.scheduler.grammars import finish, offer, refuse_compiling, take_unwatched
from pagoda_daemon.scheduler.request import choice_key
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.structured.pool import Broken, Mask, Outcome, Pool, Tried

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

    def take(self, state: State, message: Submit, now_ms: float) -> bool:
        """Whether the request has to wait for its grammar first. It was not refused."""
        if message.grammar is None or self._pool is None or self._pool.verdicts.passed(digest := message.grammar.digest):
            return False
        state.compilations.push(message, digest)
        self._compile(state, now_ms)
        return True

    def refusal(self, state: State, message: Submit, now_ms: float) -> RowOutput | None:
        """For a request with a grammar that is known to be bad or cannot wait to be compiled, or where there can be no workers at all."""
        if message.grammar is None:
            return None
        if not self._opened(state) or self._pool is None:
            return _refused(message.request_id, "this replica has none")
        digest = message.grammar.digest
        if (why := self._pool.verdicts.why_not(digest)) is not None:
            return _refused(message.request_id, why)
        refusal = None if self._pool.verdicts.passed(digest) else refuse_compiling(state, message, digest, now_ms)
        return None if refusal is None else RowOutput(message.request_id, (), "refused", refusal=refusal)

    def _compile(self, state: State, now_ms: float) -> None:
        """The next grammar, if none is under way."""
        if self._pool is not None and (begun := state.compilations.begin(now_ms)) is not None:
            self._pool.try_out(*begun, now_ms)
            self._pool.push(now_ms)

    def _opened(self, state: State) -> bool:
        if self._pool is None and self._make is not None:
            try:
                self._pool = self._make(state.limits.worker, _SLOTS_PER_ROW * state.limits.max_concurrency)
            except OSError as error:
                _log.warning("no pool for grammars", error=str(error))
                return False
            self._watch(self._pool.fileno())
        return self._pool is not None

    def planned(self, state: State, now_ms: float) -> None:
        """After each plan: a request that got a row needs a matcher."""
        if self._pool is not None and state.unwatched:
            for request in take_unwatched(state):
                if request.grammar is not None:
                    answered = tuple(request.tokens[request.prompt_len :].tolist())  # elsewhere, before it came here
                    self._pool.open(request.key, request.grammar, now_ms, answered)
            self._pool.push(now_ms)

    def advance(self, outputs: Iterable[RowOutput], now_ms: float) -> None:
        """The matchers follow the outputs that the front gets."""
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
        for outcome in self._outcomes(now_ms):
            match outcome:
                case Tried(_, why):
                    waited = state.compilations.finish(now_ms)
                    passed += waited if why is None else []
                    outputs += [_refused(message.request_id, why) for message in waited if why is not None]
                    self._compile(state, now_ms)
                case Mask(name, _, words, standing):
                    if standing == "complete":
                        outputs += finish(state, name, "stop")
                    else:
                        offer(state, name, words, accepting=standing == "accepting")
                case Broken(name, why, own):
                    outputs += _broken(finish(state, name, "error", f"the grammar cannot be followed any further: {why}"), own=own)
        return passed, outputs

    def _outcomes(self, now_ms: float) -> Iterator[Outcome]:
        """Also those of what is given to the pool meanwhile: a trial that cannot begin wakes nothing."""
        found = self._pool.outcomes(now_ms) if self._pool is not None else []
        while found and self._pool is not None:
            yield from found
            found = self._pool.at_hand()

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool = None


def _broken(ended: list[RowOutput], *, own: bool) -> list[RowOutput]:
    """An answer that its own grammar ended is reported like a grammar that was refused at once."""
    if not own:
        return ended
    return [msgspec.structs.replace(row, refusal=Refusal("grammar", 0.0, row.error or "")) for row in ended]


def _refused(request_id: str, why: str) -> RowOutput:
    return RowOutput(request_id, (), "refused", refusal=Refusal("grammar", 0.0, f"the grammar cannot be used: {why}"))
