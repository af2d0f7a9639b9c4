"""A gateway's part of a stream that continues, without the gateway: reads the notes of a replica's stream, and asks for the rest of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pagoda_contracts.names import HEADER_ANSWERED, HEADER_CONTINUABLE, HEADER_REPORT_USAGE
from pagoda_contracts.notes import NOTE, Note, from_line

ASKS = {HEADER_CONTINUABLE: "1", HEADER_REPORT_USAGE: "true"}


@dataclass(frozen=True)
class Noted:
    """A stream by its notes: the events before each of them, and the note."""

    parts: tuple[tuple[bytes, Note], ...]
    rest: bytes = b""

    @classmethod
    def of(cls, stream: bytes) -> Noted:
        parts, events = [], b""
        for event in stream.split(b"\n\n")[:-1]:
            if event.startswith(NOTE):
                parts.append((events, from_line(event[len(NOTE) :])))
                events = b""
            else:
                events += event + b"\n\n"
        return cls(tuple(parts), events)

    @property
    def whole(self) -> bool:
        return bool(self.parts) and self.parts[-1][1].state == "over" and not self.rest

    @property
    def events(self) -> bytes:
        return b"".join(events for events, _ in self.parts)

    def cuts(self) -> list[int]:
        """How many parts a client may have when the stream breaks: one of them at least has said something."""
        return [at for at in range(1, len(self.parts)) if self.record(at)]

    def record(self, parts: int) -> bytes:
        return b"\n".join(note.answered for _, note in self.parts[:parts] if note.answered)

    def after(self, parts: int) -> bytes:
        return b"".join(events for events, _ in self.parts[parts:])


def body_of(fields: dict[str, Any]) -> bytes:
    return json.dumps({"stream": True} | fields).encode()


def continued(fields: dict[str, Any], record: bytes) -> tuple[bytes, dict[str, str]]:
    """Body and headers that ask for the rest."""
    return body_of(fields) + record, ASKS | {HEADER_ANSWERED: str(len(record))}
