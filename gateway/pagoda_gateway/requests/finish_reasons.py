"""FinishReasons: how the answers of a request ended, as their bytes say on their way. Fed by proxy/relay.py, read by observed.py.

Names are searched in the bytes, and nothing is parsed: a quote inside a text of the model is escaped, so no answer can write such a name.
"""

from __future__ import annotations

import re
from typing import Final

_FINISH: Final = re.compile(rb'"(?:finish|stop)_reason": ?"([a-z_]{1,32})"')
# Of a longer answer only its end is searched.
_MOST: Final = 1 << 20


class FinishReasons:
    """Every reason of an end."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def feed(self, data: bytes) -> None:
        """Takes whole events, or a whole answer. A search of some hundred bytes for a chunk without news: 0.1 µs."""
        if b'_reason":"' in data or b'_reason": "' in data:
            self.found.update(reason.decode() for reason in _FINISH.findall(data[-_MOST:]))
