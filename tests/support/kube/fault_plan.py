"""What goes wrong between operator and API server: decided per request and per line of a watch. Pure; carried out by fault_proxy.py.

Requests are counted from 1, watches and Leases apart (they come by the clock); the events of all watches are counted from 1 too.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple

KILLS = ("kill_before", "kill_after", "kill_between")
LINES = ("drop", "twice", "cut", "410", "500", "504", "garbage", "unknown type", "far version", "empty object")


class Seen(NamedTuple):
    """A request; `number` 0 for watches and Leases, -1 for what a process that was killed still had on the wire. `path` without the query;
    `listener`: by which of the proxy's addresses it came."""

    number: int
    method: str
    path: str
    watch: bool = False
    listener: int = 0

    @property
    def write(self) -> bool:
        return self.method != "GET"

    @property
    def plural(self) -> str:
        """The kind's word in the path: /api/v1/namespaces/ns/pods/a → pods."""
        parts = self.path.strip("/").split("/")
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        return rest[2] if rest[:1] == ["namespaces"] and len(rest) > 2 else rest[0] if rest else ""


class Reaction(NamedTuple):
    """`act`: forward; kill_before (never forwarded), kill_after (committed, the answer lost), kill_between (answered, then killed); error
    (answered with `code`, not forwarded); commit_then_500; lose (forwarded, then the connection is cut); refuse (the connection is cut);
    hold (forwarded once the plan lets go); silence (never answered, the connection stays open); strand (as hold, though the client may have
    given up meanwhile); belated (forwarded, its answer handed on once the plan lets go)."""

    act: str = "forward"
    code: int = 0
    retry_after: int = 0


class Plan:
    """Nothing goes wrong."""

    def request(self, seen: Seen) -> Reaction:  # noqa: ARG002 - what a plan may decide by
        return Reaction()

    def lines(self, seen: Seen, number: int, line: bytes) -> Sequence[bytes | Literal["end"]]:  # noqa: ARG002
        """What is handed on in place of a watch's event; "end" ends the stream."""
        return [line]

    def stuck(self, seen: Seen) -> bool:  # noqa: ARG002
        """Whether what a watch says stays on the wire now."""
        return False

    def mute(self, seen: Seen) -> bool:  # noqa: ARG002
        """Whether a watch hands on nothing at all now."""
        return False

    def query(self) -> dict[str, str]:
        """Further words of a list's query."""
        return {}

    def held(self, seen: Seen) -> float:  # noqa: ARG002
        """Seconds by which a watch's events are late."""
        return 0.0

    def delay(self, seen: Seen) -> float:  # noqa: ARG002
        """Seconds by which a request is late."""
        return 0.0

    def holds(self) -> bool:
        """Whether a request that is held stays so."""
        return False


@dataclass
class AtRequests(Plan):
    """Once each, at these requests."""

    at: Mapping[int, Reaction]

    def request(self, seen: Seen) -> Reaction:
        return self.at.get(seen.number, Reaction())


@dataclass
class EveryWrite(Plan):
    """Every so-manieth write, the first of them included; Leases apart."""

    step: int
    reaction: Reaction
    _writes: Iterator[int] = field(default_factory=count)

    def request(self, seen: Seen) -> Reaction:
        return self.reaction if seen.write and seen.number and next(self._writes) % self.step == 0 else Reaction()


@dataclass
class Away(Plan):
    """While `away`, nobody answers."""

    away: bool = False

    def request(self, seen: Seen) -> Reaction:  # noqa: ARG002
        return Reaction("refuse") if self.away else Reaction()


@dataclass
class Silent(Plan):
    """While `silent`, nobody answers and no connection ends; of the watches alone, or of everything."""

    watches_only: bool = False
    silent: bool = False

    def request(self, seen: Seen) -> Reaction:
        return Reaction("silence") if self.silent and (seen.watch or not self.watches_only) else Reaction()


@dataclass
class SilentKind(Plan):
    """While `silent`, the watches of one kind are accepted and told nothing, bookmarks included."""

    plural: str
    silent: bool = False

    def mute(self, seen: Seen) -> bool:
        return self.silent and seen.plural == self.plural


@dataclass
class Slow(Plan):
    """Every request and every event of a watch is late."""

    seconds: float

    def delay(self, seen: Seen) -> float:
        return 0.0 if seen.watch else self.seconds

    def held(self, seen: Seen) -> float:  # noqa: ARG002
        return self.seconds


@dataclass
class Held(Plan):
    """The first write to a kind, by one listener, once `armed`: it stays on the wire until `armed` is taken back."""

    plural: str
    listener: int = 0
    armed: bool = False
    caught: str = ""

    def request(self, seen: Seen) -> Reaction:
        if not self.armed or self.caught or not seen.write or (seen.plural, seen.listener) != (self.plural, self.listener):
            return Reaction()
        self.caught = seen.path
        return Reaction("hold")

    def holds(self) -> bool:
        return self.armed


@dataclass
class OneWay(Plan):
    """While `cut`, what goes this way stays on the wire, and arrives when it is mended: a network that drops packets one way, and two
    kernels that send them again. No connection ends."""

    way: Literal["there", "back"]
    cut: bool = False

    def request(self, seen: Seen) -> Reaction:  # noqa: ARG002
        return Reaction() if not self.cut else Reaction("strand" if self.way == "there" else "belated")

    def stuck(self, seen: Seen) -> bool:  # noqa: ARG002
        return self.cut and self.way == "back"

    def holds(self) -> bool:
        return self.cut


@dataclass
class Lossy(Plan):
    """A share of requests finds no connection, as many lose their answers, as many are late; now and then a watch breaks. Leases too."""

    seed: int
    share: float
    late: float = 1.0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def request(self, seen: Seen) -> Reaction:
        drawn = self._rng.random()
        return Reaction("refuse") if drawn < self.share else Reaction("lose") if drawn < 2 * self.share and not seen.watch else Reaction()

    def delay(self, seen: Seen) -> float:  # noqa: ARG002
        return self.late if self._rng.random() < self.share else 0.0

    def lines(self, seen: Seen, number: int, line: bytes) -> Sequence[bytes | Literal["end"]]:  # noqa: ARG002
        return poisoned("cut", line) if self._rng.random() < self.share / 4 else [line]


@dataclass
class Storm(Plan):
    """Of the first `count` requests, or writes, a share ends in one of `codes`: the same ones of them in each run."""

    seed: int
    codes: tuple[int, ...]
    share: float
    count: int = 60
    only_writes: bool = False
    _met: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def request(self, seen: Seen) -> Reaction:
        if seen.number == 0 or (self.only_writes and not seen.write):
            return Reaction()
        self._met += 1
        struck, code = self._rng.random() < self.share, self._rng.choice(self.codes)
        if not struck or self._met > self.count:
            return Reaction()
        return Reaction("error", code, retry_after=1 if code == 429 else 0)


@dataclass
class AtLine(Plan):
    """Once, at one event of a watch."""

    at: int
    what: str
    plural: str = ""

    def lines(self, seen: Seen, number: int, line: bytes) -> Sequence[bytes | Literal["end"]]:
        struck = number == self.at if not self.plural else number >= self.at and seen.plural == self.plural
        if not struck:
            return [line]
        self.at, self.plural = -1, ""
        return poisoned(self.what, line)


@dataclass
class EachKind(Plan):
    """Once `armed`, the next event of each kind's watch, once each. `struck`: the kinds."""

    what: str
    armed: bool = False
    struck: set[str] = field(default_factory=set)

    def lines(self, seen: Seen, number: int, line: bytes) -> Sequence[bytes | Literal["end"]]:  # noqa: ARG002
        if not self.armed or seen.plural in self.struck:
            return [line]
        self.struck.add(seen.plural)
        return poisoned(self.what, line)


@dataclass
class Late(Plan):
    """The events of one kind come late."""

    plural: str
    seconds: float

    def held(self, seen: Seen) -> float:
        return self.seconds if seen.plural == self.plural else 0.0


@dataclass
class Stale(Plan):
    """While there is a version, every list is answered as of it, and watches tell their events late."""

    version: str = ""

    def held(self, seen: Seen) -> float:  # noqa: ARG002
        return 5.0 if self.version else 0.0

    def query(self) -> dict[str, str]:
        return {"resourceVersion": self.version, "resourceVersionMatch": "Exact"} if self.version else {}


def poisoned(what: str, line: bytes) -> Sequence[bytes | Literal["end"]]:
    """What a broken server or network makes of an event."""
    event: dict[str, Any] = json.loads(line)
    far = {"metadata": {**event["object"]["metadata"], "resourceVersion": str(2**62)}}
    made: dict[str, Sequence[bytes | Literal["end"]]] = {
        "drop": [],
        "twice": [line, line],
        "cut": [line[: len(line) // 2], "end"],
        "410": [_error(410), "end"],
        "500": [_error(500), "end"],
        "504": [_error(504), "end"],
        "garbage": [b"\x00\xff{]\n", "end"],
        "unknown type": [_line(event | {"type": "SURPRISE"})],
        "far version": [_line(event | {"object": event["object"] | far}), "end"],
        "empty object": [_line({"type": "MODIFIED", "object": {}})],
    }
    return made[what]


def _error(code: int) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "planted"}
    return _line({"type": "ERROR", "object": status})


def _line(event: Any) -> bytes:
    return json.dumps(event).encode() + b"\n"
