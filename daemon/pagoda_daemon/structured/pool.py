"""Pool: grammars in, masks out. Starts, feeds, watches and replaces the workers. Used by `engine.grammars`; never blocks on a worker.

A grammar that was not seen before is tried on a worker of its own, where only other newcomers wait behind it (the engine gives one at a
time); the matchers of running answers live on the others, and are opened there only for a grammar that passed. A worker that dies takes
no other request along, only the one whose job it was doing: every matcher is a grammar and the tokens it was fed, and is made anew on the
next worker.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import structlog

from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.structured.blame import LOST, blame
from pagoda_daemon.structured.process import Birth, WorkerProcess
from pagoda_daemon.structured.protocol import Advance, Answer, Close, Hello, Masked, Open, Refused, Standing, Unfit, mask_words
from pagoda_daemon.structured.verdicts import Verdicts

_REPLAY: Final = 8192  # tokens fed at once to a matcher that is made anew
_SECOND_CHANCES: Final = 3  # another grammar may kill a worker
_UNFIT: Final = "this replica cannot use grammars"
_OURS: Final = (LOST, _UNFIT)  # no fault of the grammar's: it may be tried again
# What a grammar does to a worker alone. Memory is not: the answers of a worker share 1 GiB.
_ITS_OWN: Final = (-signal.SIGPROF, -signal.SIGSEGV)

_log = structlog.get_logger(__name__)


class Tried(NamedTuple):
    """`name`'s grammar can be used, or why not."""

    name: str
    why: str | None


class Mask(NamedTuple):
    """What may follow `name`'s first `consumed` tokens; `words` are the caller's own."""

    name: str
    consumed: int
    words: Ints
    standing: Standing


class Broken(NamedTuple):
    """`name`'s matcher is gone for good."""

    name: str
    why: str
    own: bool = False
    """Its grammar did it, which passed the trial and grew too large further on: a client's fault, not ours."""


Outcome = Tried | Mask | Broken


@dataclass(slots=True)
class _Matcher:
    """One grammar at work: on trial without a slot, else for an answer. `masked`: tokens whose mask was handed out."""

    name: str
    grammar: Grammar
    worker: int
    slot: int
    trial: bool
    tokens: list[int] = field(default_factory=list)
    masked: int = -1
    deaths: int = 0


class Pool:
    """`serving` workers for answers and one for trials, none of them started before it is needed; `slots` answers at a time."""

    def __init__(self, tokenizer: Path, vocab_size: int, serving: int, slots: int) -> None:
        words = mask_words(vocab_size)
        self._birth = Birth(tokenizer, vocab_size, os.memfd_create("pagoda-masks"))
        # Each worker writes to slots of its own: a job of a matcher that is closed already may be done after its slot was given away, and
        # behind another worker's answer. Sparse: a page costs nothing until a mask is written to it. The last slot is the trials'.
        self._most, self._trial_slot = slots, serving * slots
        os.ftruncate(self._birth.memory_fd, (self._trial_slot + 1) * words * 4)
        self._masks = np.frombuffer(mmap.mmap(self._birth.memory_fd, 0), np.int32).reshape(-1, words)
        self._free = [list(range((worker + 1) * slots - 1, worker * slots - 1, -1)) for worker in range(serving)]
        self._workers: list[WorkerProcess | None] = [None] * (serving + 1)
        self._matchers: dict[int, _Matcher] = {}
        self._of_name: dict[str, int] = {}
        self._count = 0
        self.verdicts = Verdicts()
        self._outcomes: list[Outcome] = []
        self._poll = select.epoll()

    def fileno(self) -> int:
        """Readable when a worker has said something."""
        return self._poll.fileno()

    @property
    def pids(self) -> list[int]:
        """Of the workers alive, the one for trials first."""
        return [worker.pid for worker in self._workers if worker is not None]

    def try_out(self, name: str, grammar: Grammar, now_ms: float) -> None:
        """Ends in one Tried."""
        digest = grammar.digest
        why = self.verdicts.why_not(digest)
        if why is not None or self.verdicts.passed(digest):
            self._outcomes.append(Tried(name, why))
            return
        self._add(_Matcher(name, grammar, 0, self._trial_slot, trial=True), now_ms)

    def open(self, name: str, grammar: Grammar, now_ms: float, tokens: tuple[int, ...] = ()) -> None:
        """A matcher for an answer that has these tokens already; a Mask follows, and one after each `advance`."""
        load = [self._most - len(free) for free in self._free]
        if sum(load) >= self._most:
            self._outcomes.append(Broken(name, f"{self._most} answers with a grammar are under way, which is the limit"))
            return
        least = load.index(min(load))
        self._add(_Matcher(name, grammar, least + 1, self._free[least].pop(), trial=False, tokens=list(tokens)), now_ms)

    def advance(self, name: str, tokens: tuple[int, ...], now_ms: float) -> None:
        """`name`'s answer went on; nothing where it has no matcher."""
        number = self._of_name.get(name)
        if number is not None:
            matcher = self._matchers[number]
            matcher.tokens += tokens
            self._give(matcher.worker, Advance(number, tokens), now_ms)

    def close(self, name: str, now_ms: float) -> None:
        """`name` is over; nothing where it has no matcher."""
        number = self._of_name.get(name)
        if number is not None:
            matcher = self._drop(number)
            self._give(matcher.worker, Close(number), now_ms)

    def __contains__(self, name: str) -> bool:
        return name in self._of_name

    def outcomes(self, now_ms: float) -> list[Outcome]:
        """All since the last call."""
        for place, worker in enumerate(self._workers):
            if worker is not None:
                self._hear(place, worker, now_ms)
        self.push(now_ms)
        return self.at_hand()

    def at_hand(self) -> list[Outcome]:
        """Those that needed no worker, since the last call."""
        found, self._outcomes = self._outcomes, []
        return found

    def push(self, now_ms: float) -> None:
        """Send what was asked for since the last call, all of it at once: a packet a step, not one for each row."""
        for worker in self._workers:
            if worker is not None:
                worker.push(now_ms)

    def stop(self) -> None:
        """End every worker."""
        for worker in self._workers:
            if worker is not None:
                worker.kill()
                worker.bury()
        self._workers = [None] * len(self._workers)
        self._poll.close()
        os.close(self._birth.memory_fd)

    def _add(self, matcher: _Matcher, now_ms: float) -> None:
        self._count += 1
        self._matchers[self._count] = matcher
        if not matcher.trial:
            self._of_name[matcher.name] = self._count
        self._begin(self._count, matcher, now_ms)

    def _begin(self, number: int, matcher: _Matcher, now_ms: float) -> None:
        """Open on its worker, with all that it has been fed."""
        self._give(matcher.worker, Open(number, matcher.grammar.kind, matcher.grammar.text, matcher.slot, matcher.trial), now_ms)
        for at in range(0, len(matcher.tokens), _REPLAY):
            self._give(matcher.worker, Advance(number, tuple(matcher.tokens[at : at + _REPLAY])), now_ms)

    def _give(self, place: int, job: Open | Advance | Close, now_ms: float) -> None:
        worker = self._workers[place]
        if worker is None:
            if isinstance(job, Close):
                return
            worker = self._start(place, now_ms)
            if worker is None:
                if job.matcher in self._matchers:
                    self._end(job.matcher, _UNFIT)
                return
        worker.give(job)

    def _start(self, place: int, now_ms: float) -> WorkerProcess | None:
        """None where the machine has no room for one more process: the next request tries again."""
        try:
            worker = WorkerProcess(self._birth)
        except OSError as error:
            _log.warning("grammar worker cannot start", error=str(error))
            return None
        self._workers[place] = worker
        worker.patient(now_ms)
        self._poll.register(worker.fileno(), select.EPOLLIN)
        return worker

    def _drop(self, number: int) -> _Matcher:
        matcher = self._matchers.pop(number)
        if not matcher.trial:
            del self._of_name[matcher.name]
            self._free[matcher.worker - 1].append(matcher.slot)
        return matcher

    def _hear(self, place: int, worker: WorkerProcess, now_ms: float) -> None:
        if worker.overdue(now_ms):
            worker.kill()
        for answer in worker.answers(now_ms):
            if answer is None or isinstance(answer, Unfit):
                self._replace(place, worker, answer.why if answer else None, now_ms)
                return
            self._take(worker, answer)

    def _take(self, worker: WorkerProcess, answer: Answer) -> None:
        match answer:
            case Hello():
                worker.ready = True
            case Masked(matcher=number, consumed=consumed, standing=standing):
                worker.pending.popleft()
                if number in self._matchers:
                    self._masked(number, consumed, standing)
            case Refused(matcher=number, why=why, ours=ours):
                worker.pending.popleft()
                if number in self._matchers:
                    self._end(number, why, ours=ours)

    def _masked(self, number: int, consumed: int, standing: Standing) -> None:
        matcher = self._matchers[number]
        if matcher.trial:
            self._end(number, "it allows the empty text only" if standing == "complete" else None)
        elif consumed == len(matcher.tokens) and consumed > matcher.masked:  # made anew, it says again what is known
            matcher.masked = consumed
            self._outcomes.append(Mask(matcher.name, consumed, self._masks[matcher.slot].copy(), standing))

    def _end(self, number: int, why: str | None, *, ours: bool = False) -> None:
        """A trial's verdict, or the end of a matcher. `ours`: the grammar is not to blame."""
        matcher = self._drop(number)
        if not matcher.trial:
            self._outcomes.append(Broken(matcher.name, why or LOST, own=not ours and why not in (None, *_OURS)))
            return
        self._outcomes.append(Tried(matcher.name, why))
        if not ours and why not in _OURS:
            self.verdicts.note(matcher.grammar.digest, why)

    def _replace(self, place: int, worker: WorkerProcess, unfit: str | None, now_ms: float) -> None:
        """The worker is gone: the request that caused it ends, the others begin anew on its successor."""
        late = worker.overdue(now_ms)
        self._poll.unregister(worker.fileno())
        code = worker.bury()
        self._workers[place] = None
        guilty = worker.pending[0].matcher if worker.pending else None
        mine = {number: matcher for number, matcher in self._matchers.items() if matcher.worker == place}
        why = _UNFIT if unfit else blame(code, late=late)
        _log.warning("grammar worker ended", exit_code=code, unfit=unfit, late=late, matchers=len(mine), trial=place == 0)
        for number, matcher in mine.items():
            matcher.deaths += number == guilty or not worker.ready
            if unfit is not None or (number == guilty and why) or matcher.deaths > _SECOND_CHANCES:
                if number == guilty and code in _ITS_OWN:
                    self.verdicts.note(matcher.grammar.digest, why)
                self._end(number, why or LOST, ours=late and matcher.trial)
            else:
                self._begin(number, matcher, now_ms)
