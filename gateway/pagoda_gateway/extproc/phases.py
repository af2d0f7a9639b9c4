"""Phases of one HTTP exchange as Envoy reports it, and which answers are due. Pure: events in, chunks out; driven by session.py.

In the mode FULL_DUPLEX_STREAMED Envoy sends head, pieces of the body and trailers without waiting, and passes on only what it is sent
back: one head, the body in pieces of any number, and trailers if there were some. So each direction is two machines, one per way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from pagoda_gateway.requests.errors import ProxyMisconfigured

# Envoy ends a stream with larger messages (RESOURCE_EXHAUSTED). The endpoint picker of the Gateway API's extension cuts here too.
CHUNK_BYTES: Final = 62_000


class Side(Enum):
    """Which of the two messages of an exchange."""

    REQUEST = "request"
    ANSWER = "answer"


class Head(NamedTuple):
    """The headers of a message, pseudo-headers among them; `end`: it has no body and no trailers."""

    side: Side
    headers: Mapping[str, str]
    end: bool


class Piece(NamedTuple):
    """A part of a body; `end`: the last one, and no trailers follow."""

    side: Side
    data: bytes
    end: bool


class Trailers(NamedTuple):
    """Trailers: the message is complete."""

    side: Side


Event = Head | Piece | Trailers


class Chunk(NamedTuple):
    """A part of a body on its way back to Envoy."""

    data: bytes
    end: bool


class State(Enum):
    """How much of a message has come."""

    NOTHING = "nothing"
    HEAD = "its head"
    ALL = "all of it"


class Incoming:
    """One message as Envoy sends it."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self.state = State.NOTHING
        self.trailers = False
        self.body = False  # whether a piece of a body came, perhaps an empty one

    @property
    def whole(self) -> bool:
        """Whether all of it has come."""
        return self.state is State.ALL

    @property
    def head_only(self) -> bool:
        """Whether a head came, and nothing of a body."""
        return self.state is State.HEAD and not self.body

    def take(self, event: Event) -> None:
        """Records an event; ProxyMisconfigured if it cannot come now."""
        due = State.NOTHING if isinstance(event, Head) else State.HEAD
        if self.state is not due:
            kind = type(event).__name__.lower()
            raise ProxyMisconfigured(f"{kind} of the {self._side.value} came when {self.state.value} had come")
        self.trailers = isinstance(event, Trailers)
        self.body = self.body or isinstance(event, Piece)
        self.state = State.ALL if self.trailers or getattr(event, "end", False) else State.HEAD


class Exchange:
    """Both messages. The answer may begin before the request is complete: Envoy answers by itself if a client is too slow, for example."""

    def __init__(self) -> None:
        self.request, self.answer = Incoming(Side.REQUEST), Incoming(Side.ANSWER)

    def take(self, event: Event) -> None:
        """Records an event; ProxyMisconfigured if it cannot come now."""
        if self.request.state is State.NOTHING and event.side is Side.ANSWER:
            raise ProxyMisconfigured("the answer came before the request; request_header_mode must be SEND")
        (self.request if event.side is Side.REQUEST else self.answer).take(event)

    @property
    def over(self) -> bool:
        """Whether the answer is complete."""
        return self.answer.whole


def chunks(data: bytes, *, end: bool) -> Iterator[Chunk]:
    """Cuts the next bytes of a body. The end is marked even if there are no bytes left to mark."""
    last = max(0, len(data) - 1) // CHUNK_BYTES * CHUNK_BYTES
    for at in range(0, last, CHUNK_BYTES):
        yield Chunk(data[at : at + CHUNK_BYTES], end=False)
    if data or end:
        yield Chunk(data[last:], end)
