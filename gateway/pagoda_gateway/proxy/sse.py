"""Cuts a stream of bytes at the ends of its events, so that a client has received whole events whenever the stream ends. Pure."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.usage import Used, without_comments

_ENDS: Final = (b"\n\n", b"\r\n\r\n")
# Larger than any sane event. Longer ones pass as they come.
_MAX_TAIL: Final = 1 << 20


class Events:
    """Returns the bytes that it is fed, but keeps an incomplete event until its rest arrives."""

    def __init__(self) -> None:
        self._tail = b""
        self.count = 0  # of events that were returned; their ends are \n\n in the streams of our own replicas

    def take(self, chunk: bytes) -> tuple[bytes, Used | None]:
        """Returns whole events without the replica's comments about usage, and what the last of these says."""
        events, used = without_comments(self._whole(chunk))
        self.count += events.count(b"\n\n")
        return events, used

    def _whole(self, chunk: bytes) -> bytes:
        data = self._tail + chunk if self._tail else chunk
        if data.endswith(b"\n\n"):  # the usual chunk: no copy
            self._tail = b""
            return data
        cut = max(at + len(end) if (at := data.rfind(end)) >= 0 else 0 for end in _ENDS)
        if len(data) - cut > _MAX_TAIL:
            cut = len(data)
        self._tail = data[cut:]
        return data[:cut]

    def rest(self) -> bytes:
        """Returns what is left when the stream has ended well."""
        return self._tail
