"""FinishReasons: how the answers of a request ended, and the id that its replica gave it, as their bytes say on their way. Fed by
proxy/relay.py, read by observed.py and proxy/handlers.py.

Names are searched in the bytes, and nothing is parsed: a quote inside a text of the model is escaped, so no answer can write such a name.
"""

from __future__ import annotations

import re
from typing import Final

from pagoda_contracts.names import ID_PREFIXES

_FINISH: Final = re.compile(rb'"(?:finish|stop)_reason": ?"([a-z_]{1,32})"')
_ID: Final = re.compile(rf'"id": ?"(?:{ID_PREFIXES})([0-9a-f]{{32}})"'.encode())
# The id stands in the first event, near its beginning.
_LOOKS, _NEAR = 4, 1024
# Of a longer answer only its end is searched.
_MOST: Final = 1 << 20


class FinishReasons:
    """Every reason of an end. `id` is "" until it is known."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.id = ""
        self._looks = 0

    def feed(self, data: bytes) -> None:
        """Takes whole events, or a whole answer. A search of some hundred bytes for a chunk without news: 0.1 µs."""
        if not self.id and self._looks < _LOOKS:
            self._looks += 1
            self.id = match[1].decode() if (match := _ID.search(data[:_NEAR])) is not None else ""
        if b'_reason":"' in data or b'_reason": "' in data:
            self.found.update(reason.decode() for reason in _FINISH.findall(data[-_MOST:]))
