"""Who owns a name that several objects claim: who has it already, else the oldest one. Pure; asked by the gateway (routing) and the
operator (conditions), which writes into each status what the object holds, so that both tell the same after any restart.

A later claimer never moves traffic, though it be older: it waits until the holder is gone or wants the name no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Claim(NamedTuple):
    """`owner` ("namespace/name" of an object with this `uid`, created at this RFC 3339 time) wants to answer to `name`."""

    name: str
    created: str
    uid: str
    owner: str
    # Whether its status says that it holds the name.
    holds: bool = False

    @property
    def rank(self) -> tuple[bool, str, str]:
        """Smaller goes first: who holds it, then who is older. Kubernetes writes creationTimestamp in UTC with whole seconds, so text order
        is time order."""
        return not self.holds, self.created, self.uid


def resolve(claims: Iterable[Claim]) -> dict[str, Claim]:
    """Name → the claim that holds it."""
    held: dict[str, Claim] = {}
    for claim in claims:
        holder = held.get(claim.name)
        if holder is None or claim.rank < holder.rank:
            held[claim.name] = claim
    return held
