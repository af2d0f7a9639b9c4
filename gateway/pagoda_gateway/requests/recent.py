"""Recent: which replica answered the last requests, so that their traces can be asked for. Pure. Filled by proxy/handlers.py, read by
proxy/traces.py.

A replica makes an id of its own for each answer, and the client reads it there. The client also has the gateway's id, in a header.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Final, NamedTuple

# Some 400 bytes for each.
_MOST: Final = 4096
_PREFIXED: Final = re.compile(r"(?:chatcmpl-|cmpl-|resp_|msg_)?([0-9a-f]{32})")


class Answered(NamedTuple):
    """The replica's address, and its id of the request."""

    address: str
    id: str


class Recent:
    """The last requests of all tenants. A tenant finds its own only, whatever ids others chose."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._found: OrderedDict[tuple[str, str], Answered] = OrderedDict()

    def add(self, tenant: str, request_id: str, answered: Answered) -> None:
        """A replica answered this request."""
        for name in (request_id, answered.id):
            self._found[tenant, name] = answered
            self._found.move_to_end((tenant, name))
        while len(self._found) > 2 * self._most:
            self._found.popitem(last=False)

    def find(self, tenant: str, name: str) -> Answered | None:
        """Returns who answered the tenant's request with this id: the header's, or the answer's with or without its prefix."""
        match = _PREFIXED.fullmatch(name)
        return self._found.get((tenant, name)) or (self._found.get((tenant, match[1])) if match else None)
