"""fleet: what replicas would have done with a trace's demand. A discrete-event model with a virtual clock; called by `replay.run`.

A request goes to the replica with the fewest requests, as the gateway sends it, and stays there: it waits in that replica's queue while all
its rows are taken, then computes its prompt, then holds a row until its answer ends. Without a ready replica it is held. A replica that is
told to leave gets nothing new and ends with its last request; one that starts is paid for from the beginning.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from pagoda_operator.replay.traces import Arrival


@dataclass(frozen=True, slots=True)
class Replica:
    """What one replica can do: rows, seconds per prompt and per answer token, seconds until it serves, blocks of KV and their size."""

    rows: int = 16
    prompt_s: float = 0.0004
    token_s: float = 0.03
    start_s: float = 90.0
    blocks: int = 2048
    block_size: int = 16


@dataclass(slots=True, eq=False)
class Member:
    """One replica of the fleet."""

    born: float
    ready_at: float
    running: int = 0
    blocks: int = 0
    queue: deque[Arrival] = field(default_factory=deque)
    leaving: bool = False

    @property
    def load(self) -> int:
        return self.running + len(self.queue)


@dataclass(slots=True)
class Tally:
    """What came of it. `paid_s` are replica-seconds from a replica's order to its end."""

    served: int = 0
    missed: int = 0
    paid_s: float = 0.0
    longest_wait_s: float = 0.0


class Fleet:
    """Replicas and requests, moved on by `until` and `order`."""

    def __init__(self, kind: Replica, replicas: int, ttft_s: float) -> None:
        self.now = 0.0
        self.kind = kind
        self.tally = Tally()
        self.members = [Member(0.0, 0.0) for _ in range(replicas)]
        self._all_ready_at = 0.0
        self.held: deque[Arrival] = deque()
        self.ttfts: deque[tuple[float, float]] = deque()
        self.arrived = 0
        self.last_arrival = 0.0
        self._ttft_s = ttft_s
        self._ends: list[tuple[float, int, Member, int]] = []
        self._count = 0

    @property
    def wanted(self) -> list[Member]:
        return [member for member in self.members if not member.leaving]

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.wanted if member.ready_at <= self.now]

    def arrive(self, arrival: Arrival) -> None:
        """The next request; everything before it has happened."""
        self.until(arrival.at)
        self.arrived += 1
        self.last_arrival = arrival.at
        self._place(arrival)

    def until(self, now: float) -> None:
        """Let time pass: answers end, replicas become ready."""
        while True:
            starting = self.members if self.now < self._all_ready_at else []
            coming = min((m.ready_at for m in starting if self.now < m.ready_at <= now), default=None)
            ending = self._ends[0][0] if self._ends and self._ends[0][0] <= now else None
            if coming is None and ending is None:
                break
            if ending is None or (coming is not None and coming < ending):
                self._pass(coming if coming is not None else now)
                self._release()
            else:
                at, _, member, blocks = heapq.heappop(self._ends)
                self._pass(at)
                self._finish(member, blocks)
        self._pass(now)

    def order(self, wanted: int) -> None:
        """Have so many replicas: new ones start; of those there are, what does not serve yet leaves first, then who has least to do."""
        there = self.wanted
        for _ in range(wanted - len(there)):
            self._all_ready_at = self.now + self.kind.start_s
            self.members.append(Member(self.now, self._all_ready_at))
        for member in sorted(there, key=lambda m: (m.ready_at <= self.now, m.load))[: max(0, len(there) - wanted)]:
            member.leaving = True
            self._bury(member)

    def _pass(self, to: float) -> None:
        self.tally.paid_s += (to - self.now) * len(self.members)
        self.now = to

    def _place(self, arrival: Arrival) -> None:
        member = self._idlest()
        if member is None:
            self.held.append(arrival)
        elif member.running < self.kind.rows:
            self._begin(member, arrival)
        else:
            member.queue.append(arrival)

    def _idlest(self) -> Member | None:
        """Returns the first serving member with the least load. It runs for each arrival."""
        found, least = None, 0
        for member in self.members:
            if not member.leaving and member.ready_at <= self.now:
                load = member.running + len(member.queue)
                if found is None or load < least:
                    found, least = member, load
        return found

    def _release(self) -> None:
        held, self.held = self.held, deque()
        for arrival in held:
            self._place(arrival)

    def _begin(self, member: Member, arrival: Arrival) -> None:
        first = self.now + arrival.prompt * self.kind.prompt_s
        ttft = first - arrival.at
        self.tally.served += 1
        self.tally.missed += ttft > self._ttft_s
        self.tally.longest_wait_s = max(self.tally.longest_wait_s, ttft)
        self.ttfts.append((first, ttft))
        blocks = -(-(arrival.prompt + arrival.answer) // self.kind.block_size)
        member.running += 1
        member.blocks += blocks
        self._count += 1
        heapq.heappush(self._ends, (first + arrival.answer * self.kind.token_s, self._count, member, blocks))

    def _finish(self, member: Member, blocks: int) -> None:
        member.running -= 1
        member.blocks -= blocks
        if member.queue:
            self._begin(member, member.queue.popleft())
        self._bury(member)

    def _bury(self, member: Member) -> None:
        if member.leaving and not member.load:
            self.members.remove(member)
