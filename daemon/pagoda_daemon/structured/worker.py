"""The process that owns matchers: `python -P -m pagoda_daemon.structured.worker`, exec'd by `process`, killed when one costs too much.

Says Hello when the tokenizer is loaded, then answers jobs in order. Before each job it has the kernel set a timer on its CPU time and a
limit on its memory, by what the job's grammar has left: a grammar that explodes ends this process in the middle of native code, and the
pool knows whose job it was. A trial runs in a fork (`forks`): it costs its CPU time, and not also the 1.3 s that a new worker takes to load
a vocabulary of 128,000 tokens. Knows nothing of requests.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from llguidance import LLMatcher, LLTokenizer

from pagoda_daemon.core.errors import MAX_SHOWN
from pagoda_daemon.process.parent import belong_to_parent
from pagoda_daemon.structured import limits
from pagoda_daemon.structured.blame import BY_MISTAKE, LOST, blame
from pagoda_daemon.structured.compile import matcher_of
from pagoda_daemon.structured.forks import in_fork
from pagoda_daemon.structured.protocol import Advance, Answer, Close, Hello, Job, Masked, Open, Refused, Standing, Unfit, mask_words
from pagoda_daemon.structured.vocabulary import read_vocabulary

MAX_PACKET = 1 << 18
_PAGE = os.sysconf("SC_PAGE_SIZE")
_KEPT = 32
_KEPT_BYTES = 8 * 2**20
_NO_TEXT = ("NoExtension", "NoExtensionBias")


class _Unmasked(ValueError):
    """A token that was never allowed: no fault of the grammar's."""


@dataclass(slots=True)
class _Matcher:
    """A matcher, where its masks go, and what its grammar has used so far."""

    matcher: LLMatcher
    slot: int
    consumed: int = 0
    cpu_s: float = 0.0
    grown: int = 0


class _Meter:
    """What this process has used, by the kernel's count."""

    def __init__(self) -> None:
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._base = self.size()

    def size(self) -> int:
        """Bytes of address space: never less than what is resident, and what the kernel can limit."""
        return int(os.pread(self._statm, 32, 0).split(b" ", 1)[0]) * _PAGE

    @property
    def grown(self) -> int:
        return self.size() - self._base

    def bound(self, cpu_s: float, room: int) -> None:
        """From now on: SIGPROF after so much CPU, no memory beyond `room` more."""
        signal.setitimer(signal.ITIMER_PROF, max(cpu_s, 0.001))
        resource.setrlimit(resource.RLIMIT_AS, (self.size() + max(0, room), resource.RLIM_INFINITY))

    def unbound(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Matchers:
    """All matchers of this process. `memory` holds their masks, `words` words each."""

    def __init__(self, tokenizer: LLTokenizer, memory: mmap.mmap, words: int) -> None:
        self._tokenizer = tokenizer
        self._memory = memory
        self._bytes = words * 4
        self._end_byte, self._end_bit = divmod(tokenizer.vocab_size - 1, 8)
        self._matchers: dict[int, _Matcher] = {}
        self._fresh: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._meter = _Meter()

    def tried(self, job: Open) -> Answer:
        """`answer` of a fork, of which nothing else is left."""
        said, code = in_fork(lambda: msgspec.msgpack.encode(self._afresh().answer(job)))
        if said:
            return msgspec.msgpack.decode(said, type=Masked | Refused)
        return Refused(job.matcher, blame(code, late=False, trial=True) or LOST, ours=code in BY_MISTAKE)

    def _afresh(self) -> Matchers:
        """The kernel's counts are those of one process."""
        self._meter = _Meter()
        return self

    def answer(self, job: Open | Advance) -> Answer:
        """Do the job within its grammar's limits, or not survive it."""
        state = self._matchers.get(job.matcher)
        cpu, grown = (state.cpu_s, state.grown) if state else (0.0, 0)
        allowed = limits.COMPILE_CPU_S if isinstance(job, Open) and job.trial else limits.CPU_S
        allowed += limits.CPU_PER_TOKEN_S * (state.consumed if state else 0)
        began, before = time.process_time(), self._meter.size()
        self._meter.bound(allowed - cpu, min(limits.MEMORY_BYTES - grown, limits.WORKER_BYTES - self._meter.grown))
        try:
            answer = self._open(job) if isinstance(job, Open) else self._advance(job)
        except (ValueError, MemoryError) as error:
            why = _sentence(str(error)) or f"it needs more than {limits.MEMORY_BYTES >> 20} MiB"
            answer = Refused(job.matcher, why, ours=isinstance(error, _Unmasked))
        finally:
            self._meter.unbound()
        if isinstance(answer, Refused):
            self.close(job.matcher)
        elif state := self._matchers.get(job.matcher):
            state.cpu_s += time.process_time() - began
            state.grown += max(0, self._meter.size() - before)
        return answer

    def close(self, matcher: int) -> None:
        self._matchers.pop(matcher, None)

    @property
    def bloated(self) -> bool:
        """It has no grammars, yet its memory did not shrink."""
        return not self._matchers and self._meter.grown > limits.MEMORY_BYTES

    def _open(self, job: Open) -> Answer:
        key = (job.kind, job.text)
        fresh = self._fresh.get(key)
        if fresh is None:
            before = self._meter.size()
            fresh = matcher_of(self._tokenizer, job.kind, job.text)
            fresh.compute_bitmask()  # builds what every copy shares
            if fresh.is_error():
                raise ValueError(fresh.get_error())
            if self._meter.size() - before < _KEPT_BYTES:
                self._fresh[key] = fresh
        else:
            self._fresh.move_to_end(key)
        while len(self._fresh) > _KEPT:
            self._fresh.popitem(last=False)
        state = self._matchers[job.matcher] = _Matcher(fresh.deep_copy(), job.slot)
        return self._masked(job.matcher, state)

    def _advance(self, job: Advance) -> Answer:
        state = self._matchers.get(job.matcher)
        if state is None:
            raise _Unmasked("its matcher was closed")
        if not state.matcher.consume_tokens(list(job.tokens)):
            raise (ValueError if self._allowed(state, job.tokens[0]) else _Unmasked)(state.matcher.get_error())
        state.consumed += len(job.tokens)
        return self._masked(job.matcher, state)

    def _allowed(self, state: _Matcher, token: int) -> bool:
        """By the mask that was handed out last."""
        return bool(self._memory[state.slot * self._bytes + token // 8] >> token % 8 & 1)

    def _masked(self, number: int, state: _Matcher) -> Answer:
        mask = bytearray(state.matcher.compute_bitmask())
        if state.matcher.is_error():
            raise ValueError(state.matcher.get_error())
        ends = bool(mask[self._end_byte] >> self._end_bit & 1)
        mask[self._end_byte] &= ~(1 << self._end_bit) & 0xFF
        complete = state.matcher.is_stopped() or mask.count(0) == len(mask)
        if complete and not ends and not state.matcher.is_accepting():
            raise ValueError("no token of this model can go on in this grammar")
        self._memory[state.slot * self._bytes : state.slot * self._bytes + len(mask)] = bytes(mask)
        standing: Standing = "complete" if complete else "accepting" if ends else "open"
        return Masked(number, state.consumed, standing)


def _sentence(why: str) -> str:
    """What a client can use of an error of llguidance's."""
    why = why.replace("<non-verbose/>", "").strip()
    return "no text satisfies it" if why in _NO_TEXT else why[:MAX_SHOWN]


def serve(channel: socket.socket, matchers: Matchers) -> None:
    """Until the pool closes its end, or this process had better be replaced."""
    encode = msgspec.msgpack.Encoder().encode
    decoder = msgspec.msgpack.Decoder(list[Job])
    while packet := channel.recv(MAX_PACKET):
        for job in decoder.decode(packet):
            match job:
                case Close():
                    matchers.close(job.matcher)
                case Open(trial=True):
                    channel.send(encode(matchers.tried(job)))
                case _:
                    channel.send(encode(matchers.answer(job)))
        if matchers.bloated:
            return


def _prepare(tokenizer: Path, vocab_size: int, memory_fd: int) -> Matchers:
    vocabulary = read_vocabulary(tokenizer.read_text(encoding="utf-8"), vocab_size)
    return Matchers(vocabulary, mmap.mmap(memory_fd, 0), mask_words(vocab_size))


def main() -> None:
    """Never outlives the process that started it: the kernel kills it with the parent, and a closed channel ends it."""
    belong_to_parent()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    parser = argparse.ArgumentParser(prog="pagoda-grammars")
    parser.add_argument("--tokenizer", type=Path, required=True)
    for name in ("vocab-size", "channel", "memory"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()
    channel = socket.socket(fileno=given.channel)
    say: Callable[[Answer], object] = lambda answer: channel.send(msgspec.msgpack.encode(answer))  # noqa: E731
    try:
        matchers = _prepare(given.tokenizer, given.vocab_size, given.memory)
    except Exception as error:  # noqa: BLE001  whatever it is, the pool has to know
        say(Unfit(f"{type(error).__name__}: {error}"[:MAX_SHOWN]))
        return
    say(Hello())
    serve(channel, matchers)


if __name__ == "__main__":
    main()
