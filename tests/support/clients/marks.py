"""A gateway's part of a stream that continues, without the gateway: reads the marks of a replica's stream, and asks for the rest of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pagoda_contracts.names import HEADER_ANSWERED, HEADER_CONTINUABLE, MARK, MARK_DIED, MARK_OVER

ASKS = {HEADER_CONTINUABLE: "1"}


@dataclass(frozen=True)
class Marked:
    """A stream by its marks: the events before each of them, and what they hold (empty: events that no token made)."""

    parts: tuple[tuple[bytes, bytes], ...]
    rest: bytes = b""

    @classmethod
    def of(cls, stream: bytes) -> Marked:
        parts, events = [], b""
        for event in stream.split(b"\n\n")[:-1]:
            if event.startswith(MARK):
                parts.append((events, event[len(MARK) :]))
                events = b""
            else:
                events += event + b"\n\n"
        return cls(tuple(parts), events)

    @property
    def whole(self) -> bool:
        return bool(self.parts) and self.parts[-1][1] == MARK_OVER and not self.rest

    @property
    def died(self) -> bool:
        return bool(self.parts) and self.parts[-1][1] == MARK_DIED

    @property
    def events(self) -> bytes:
        return b"".join(events for events, _ in self.parts)

    def cuts(self) -> list[int]:
        """How many parts a client may have when the stream breaks: one of them at least has said something."""
        return [at for at in range(1, len(self.parts)) if self.record(at)]

    def record(self, parts: int) -> bytes:
        return b"\n".join(mark for _, mark in self.parts[:parts] if mark and mark not in (MARK_OVER, MARK_DIED))

    def after(self, parts: int) -> bytes:
        return b"".join(events for events, _ in self.parts[parts:])


def body_of(fields: dict[str, Any]) -> bytes:
    return json.dumps({"stream": True} | fields).encode()


def continued(fields: dict[str, Any], record: bytes) -> tuple[bytes, dict[str, str]]:
    """Body and headers that ask for the rest."""
    return body_of(fields) + record, ASKS | {HEADER_ANSWERED: str(len(record))}
