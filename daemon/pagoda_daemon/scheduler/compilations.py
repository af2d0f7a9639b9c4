"""Compilations: requests whose grammar has no verdict yet, in one queue per tenant. Held by `state`, fed by `engine.grammars`; pure.

One grammar is compiled at a time, because one costs at most a bounded time (`structured.limits`). The next one belongs to the tenant
whose last turn is the oldest. So the first grammar in a tenant's queue waits for the one under way and for at most one of each other
tenant, however many those have sent. Requests with the same grammar share one compilation.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Final, NamedTuple

from pagoda_daemon.core.messages import Grammar, Refusal, RowOutput, Submit

MOST_OF_TENANT: Final = 128
"""Different grammars of one tenant that may wait. The bad ones among them cost `COMPILE_CPU_S` each, and the tenant itself pays."""
MOST: Final = 1024
"""Of all tenants: at 64 KiB each, 64 MiB of text."""

_TURNS_KEPT: Final = 4096
_HABIT: Final = 0.2
_MIN_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 120.0

_Requests = dict[str, Submit]


class _Place(NamedTuple):
    tenant: str
    digest: str
    tokens: int
    deadline_ms: float


class Compilations:
    """`tokens` are those of the prompts that wait here. `begun` is the digest of the grammar that is being compiled."""

    def __init__(self) -> None:
        self.begun: str | None = None
        self.tokens = 0
        self._sharing: _Requests = {}  # what waits for `begun`
        self._lines: dict[str, dict[str, _Requests]] = {}  # tenant → digest → requests: not begun, in the order of arrival
        self._places: dict[str, _Place] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._turns: OrderedDict[str, int] = OrderedDict()  # tenant → number of its last turn
        self._turn = 0
        self._began_ms = 0.0
        self._measured = 0
        self._mean_ms = 0.0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._places

    def full(self, message: Submit, digest: str, most_tokens: int) -> Refusal | None:
        """Why `message` cannot wait here now; None if it can."""
        line = self._lines.get(message.tenant, {})
        if self._places and self.tokens + _known(message) > most_tokens:
            return self._refusal(len(line), f"{self.tokens} prompt tokens wait for grammars to be compiled; at most {most_tokens} may")
        if digest == self.begun or digest in line:
            return None
        if len(line) >= MOST_OF_TENANT:
            return self._refusal(len(line), f"{len(line)} grammars of this tenant wait to be compiled; at most {MOST_OF_TENANT} may")
        if (waiting := sum(map(len, self._lines.values()))) >= MOST:
            return self._refusal(waiting, f"{waiting} grammars wait to be compiled; at most {MOST} may")
        return None

    def turns_before(self, tenant: str, digest: str) -> int:
        """At most so many compilations end before that of `digest` begins, if it is queued for `tenant` now."""
        if digest == self.begun:
            return 0
        own = list(self._lines.get(tenant, {}))
        before = own.index(digest) if digest in own else len(own)
        last = self._turns.get(tenant, 0)
        others = sum(min(len(line), before + (self._turns.get(other, 0) <= last)) for other, line in self._lines.items() if other != tenant)
        return (self.begun is not None) + before + others

    def wait_ms(self, tenant: str, digest: str) -> float:
        """Predicted from how long compilations took so far; 0 while none was measured."""
        return self.turns_before(tenant, digest) * self._mean_ms

    def push(self, message: Submit, digest: str) -> None:
        """`message` waits for the verdict on its grammar. It was not refused."""
        deadline = float("inf") if message.deadline_ms is None else float(message.deadline_ms)
        place = self._places[message.request_id] = _Place(message.tenant, digest, _known(message), deadline)
        self.tokens += place.tokens
        if message.deadline_ms is not None:
            heapq.heappush(self._deadlines, (deadline, message.request_id))
        if digest == self.begun:
            self._sharing[message.request_id] = message
        else:
            self._lines.setdefault(place.tenant, {}).setdefault(digest, {})[message.request_id] = message

    def begin(self, now_ms: float) -> tuple[str, Grammar] | None:
        """What is to be compiled now, by its digest; None if one is under way or none waits."""
        if self.begun is not None or not self._lines:
            return None
        tenant = min(self._lines, key=lambda one: self._turns.get(one, 0))
        self.begun, self._began_ms = next(iter(self._lines[tenant])), now_ms
        for one in list(self._lines):
            self._sharing |= self._take(one, self.begun)
        self._note_turn(tenant)
        return self.begun, _grammar_of(self._sharing)

    def finish(self, now_ms: float) -> list[Submit]:
        """The compilation under way is over: the requests that waited for it."""
        ended, self._sharing, self.begun = self._sharing, {}, None
        for request_id in ended:
            self._forget(request_id)
        self._measure(now_ms - self._began_ms)
        return list(ended.values())

    def drop(self, request_id: str) -> bool:
        """The request leaves. Its grammar is not compiled for it any more, unless that has begun. False if it does not wait here."""
        place = self._places.get(request_id)
        if place is None:
            return False
        self._forget(request_id)
        if self._sharing.pop(request_id, None) is None:
            requests = self._lines[place.tenant][place.digest]
            del requests[request_id]
            if not requests:
                self._take(place.tenant, place.digest)
        return True

    def expire(self, now_ms: float) -> list[RowOutput]:
        """End every request whose deadline has passed."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline, request_id = heapq.heappop(self._deadlines)
            place = self._places.get(request_id)
            if place is not None and place.deadline_ms == deadline and self.drop(request_id):  # an id may have come again
                why = Refusal("deadline", 0.0, "the deadline passed before the grammar was compiled")
                ended.append(RowOutput(request_id, (), "refused", refusal=why))
        return ended

    def _take(self, tenant: str, digest: str) -> _Requests:
        line = self._lines[tenant]
        found = line.pop(digest, {})
        if not line:
            del self._lines[tenant]
        return found

    def _measure(self, took_ms: float) -> None:
        """Except for the first one, which waits for the worker to start (1.3 s): no later one does."""
        if self._measured:
            self._mean_ms += (_HABIT if self._measured > 1 else 1.0) * (took_ms - self._mean_ms)
        self._measured += 1

    def _note_turn(self, tenant: str) -> None:
        self._turn += 1
        self._turns[tenant] = self._turn
        self._turns.move_to_end(tenant)
        if len(self._turns) > _TURNS_KEPT:
            self._turns.popitem(last=False)

    def _forget(self, request_id: str) -> None:
        self.tokens -= self._places.pop(request_id).tokens

    def _refusal(self, turns: int, message: str) -> Refusal:
        wait_s = turns * self._mean_ms / 1000
        return Refusal("queue_full", min(_MAX_RETRY_S, max(_MIN_RETRY_S, wait_s)), message)


def _known(message: Submit) -> int:
    return len(message.prompt) + len(message.resumed)


def _grammar_of(requests: _Requests) -> Grammar:
    return next(message.grammar for message in requests.values() if message.grammar is not None)
