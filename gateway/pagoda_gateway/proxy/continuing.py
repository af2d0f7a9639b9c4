"""Record: what a stream's replicas have marked so far, by which another one continues it. Pure but for the counting; used by relay.py.

The marks are the replica's own words, and stay closed here: the gateway knows no tokens. docs/design/continuing.md has the protocol.
"""

from __future__ import annotations

from collections.abc import Sequence

from multidict import CIMultiDict
from pagoda_contracts.names import HEADER_ANSWERED
from pagoda_contracts.notes import MAX_ANSWERED

from pagoda_gateway.proxy.upstream import Call
from pagoda_gateway.requests.budget import Take
from pagoda_gateway.requests.errors import QueueFull


class Record:
    """One stream's marks, in order. `take` counts their bytes beside those of bodies; without room for them the stream is not continued."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._marks: list[bytes] = []
        self._size = 0
        self.lost = False

    def add(self, marks: Sequence[bytes]) -> None:
        """Records what the client has been sent."""
        size = sum(len(mark) + 1 for mark in marks)
        if self.lost or not size:
            return
        try:
            if self._size + size > MAX_ANSWERED:
                raise QueueFull("one stream's record is too long")
            self._take(size)
        except QueueFull:
            self.lost, self._marks = True, []
            return
        self._marks += marks
        self._size += size

    def call(self, call: Call) -> Call:
        """Returns the request for the rest of the answer; the request itself while nothing is answered."""
        if not self._marks:
            return call
        marks = b"\n".join(self._marks)
        headers: CIMultiDict[str] = CIMultiDict(call.headers)
        headers[HEADER_ANSWERED] = str(len(marks))
        return Call(call.path, headers, call.body + marks)
