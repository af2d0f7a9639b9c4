"""RoutingRequest: all that routing may know of a request. Made once the request's body is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """`model` is the name that the client asks for, `tenant` the owner of its API key, `prefix_hashes` the hash chain of the prompt's
    beginning, and `prompt_tokens` a guess at the prompt's length. `session` is the same for all requests of a conversation, "" if it is
    not known to be one. pick.py fills in `owner`, the endpoint that has the session, and `crowded`, the endpoints that had more than their
    share of late. `tier` is "batch" for requests that may wait; `stream`: the answer is a stream."""

    model: str
    tenant: str = ""
    prefix_hashes: tuple[bytes, ...] = ()
    session: str = ""
    owner: str = ""
    crowded: frozenset[str] = frozenset()
    prompt_tokens: int = 0
    tier: Literal["interactive", "batch"] = "interactive"
    stream: bool = False
