"""Replays a trace through one policy: a discrete-event model of replicas with a virtual clock. Called by `command` and by tests.

A request goes to the replica with the fewest requests, as the gateway sends it, and stays there. It waits in that replica's queue while all
rows are in use, then computes its prompt, then occupies a row until its answer ends. Without a ready replica the gateway holds it.
A replica that is scaled down gets no new request and ends with its last one. A starting replica is paid for from its order on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when, in seconds from the trace's beginning, and the tokens of its prompt and its answer."""

    at: float
    prompt: int
    answer: int


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica's rows, seconds per prompt and per answer token, seconds until it serves, blocks of KV and their size."""

    rows: int = 16
    prompt_s: float = 0.0004
    token_s: float = 0.03
    start_s: float = 90.0
    blocks: int = 2048
    block_size: int = 16


@dataclass(slots=True, eq=False)
class Member:
    """One replica of the service."""

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
    """The sums. `paid_s` are replica-seconds from a replica's order to its end."""

    served: int = 0
    missed: int = 0
    paid_s: float = 0.0
    longest_wait_s: float = 0.0


class SimulatedService:
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
        """Lets time pass until the next request, and places it."""
        self.until(arrival.at)
        self.arrived += 1
        self.last_arrival = arrival.at
        self._place(arrival)

    def until(self, now: float) -> None:
        """Lets time pass: answers end, replicas become ready."""
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
        """Starts replicas or removes some: first those that do not serve yet, then those with the least load."""
        members = self.wanted
        for _ in range(wanted - len(members)):
            self._all_ready_at = self.now + self.kind.start_s
            self.members.append(Member(self.now, self._all_ready_at))
        for member in sorted(members, key=lambda m: (m.ready_at <= self.now, m.load))[: max(0, len(members) - wanted)]:
            member.leaving = True
            self._remove_idle(member)

    def _pass(self, to: float) -> None:
        self.tally.paid_s += (to - self.now) * len(self.members)
        self.now = to

    def _place(self, arrival: Arrival) -> None:
        serving = (member for member in self.members if not member.leaving and member.ready_at <= self.now)
        member = min(serving, key=lambda one: one.running + len(one.queue), default=None)
        if member is None:
            self.held.append(arrival)
        elif member.running < self.kind.rows:
            self._begin(member, arrival)
        else:
            member.queue.append(arrival)

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
        self._remove_idle(member)

    def _remove_idle(self, member: Member) -> None:
        if member.leaving and not member.load:
            self.members.remove(member)


@dataclass(frozen=True, slots=True)
class Policy:
    """`decide` returns the replicas wanted every `period_s` seconds; the course has a line every `course_s`."""

    name: str
    decide: Callable[[SimulatedService], int]
    period_s: float
    course_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The fewest and the most replicas; it begins with the fewest. A first token after `ttft_s` is a miss."""

    least: int = 1
    most: int = 32
    ttft_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the course."""

    at: float
    wanted: int
    ready: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy made of a trace. `too_long` of the missed are prompts that take longer than `ttft_s` by themselves."""

    policy: str
    requests: int
    missed: int
    too_long: int
    gpu_hours: float
    longest_wait_s: float
    changes: int
    course: tuple[Sample, ...]


def replay(arrivals: Iterable[Arrival], policy: Policy, kind: Replica, bounds: Bounds) -> Outcome:
    """Replays until the last answer has ended. `gpu_hours` are replica-hours, each from the replica's order to its end."""
    service = SimulatedService(kind, bounds.least, bounds.ttft_s)
    course: list[Sample] = []
    pending = deque(arrivals)
    tick, changes, too_long = 0.0, 0, 0
    while pending or any(member.load for member in service.members) or service.held:
        tick += policy.period_s
        while pending and pending[0].at < tick:
            too_long += pending[0].prompt * kind.prompt_s > bounds.ttft_s
            service.arrive(pending.popleft())
        service.until(tick)
        wanted = min(bounds.most, max(bounds.least, policy.decide(service)))
        changes += wanted != len(service.wanted)
        service.order(wanted)
        if not policy.course_s or tick % policy.course_s == 0:
            course.append(_sample(service))
    tally = service.tally
    return Outcome(policy.name, tally.served, tally.missed, too_long, tally.paid_s / 3600, tally.longest_wait_s, changes, tuple(course))


def _sample(service: SimulatedService) -> Sample:
    running = sum(member.running for member in service.members)
    waiting = sum(len(member.queue) for member in service.members) + len(service.held)
    return Sample(service.now, len(service.wanted), len(service.ready), running, waiting)
