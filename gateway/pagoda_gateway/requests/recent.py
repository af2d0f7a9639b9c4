"""Recent: which replica answered the last requests, so that their traces can be asked for. Pure. Filled by proxy/handlers.py, read by
proxy/traces.py.

A replica makes an id of its own for each answer, and the client reads it there. The client also has the gateway's id, in a header.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from pagoda_contracts.names import ID_PREFIXES

# Some 400 bytes for each.
_MOST: Final = 4096
# A replica forgets its traces much sooner where there is traffic.
_MAX_AGE_MS: Final = 3_600_000
_PREFIXED: Final = re.compile(rf"(?:{ID_PREFIXES})?([0-9a-f]{{32}})")


class Answered(NamedTuple):
    """The replica's name and address, and its id of the request."""

    replica: str
    address: str
    id: str


class Recent:
    """The last requests of all tenants, none for longer than an hour. A tenant finds its own only, whatever ids others chose."""

    def __init__(self, clock_ms: Callable[[], float], most: int = _MOST) -> None:
        self._clock_ms, self._most = clock_ms, most
        self._found: OrderedDict[tuple[str, str], tuple[float, Answered]] = OrderedDict()

    def add(self, tenant: str, request_id: str, answered: Answered) -> None:
        """A replica answered this request."""
        for name in (request_id, answered.id):
            self._found[tenant, name] = self._clock_ms(), answered
            self._found.move_to_end((tenant, name))
        while len(self._found) > 2 * self._most:
            self._found.popitem(last=False)

    def find(self, tenant: str, name: str) -> Answered | None:
        """Returns who answered the tenant's request with this id: the header's, or the answer's with or without its prefix."""
        match = _PREFIXED.fullmatch(name)
        found = self._found.get((tenant, name)) or (self._found.get((tenant, match[1])) if match else None)
        return found[1] if found is not None and self._clock_ms() - found[0] < _MAX_AGE_MS else None
