"""RoutingRequest: all that routing may know of a request. Made once the request's body is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """`model` is the name that the client asks for, `tenant` the owner of its API key. The other fields keep their empty values until
    prefix and adapter routing and priorities exist: `adapter` a LoRA of the service, `prefix_hashes` the hash chain of the prompt's
    beginning, `session` the key of consistent hashing, `priority` larger is sooner."""

    model: str
    adapter: str = ""
    tenant: str = ""
    prefix_hashes: tuple[bytes, ...] = ()
    session: str = ""
    priority: int = 0
