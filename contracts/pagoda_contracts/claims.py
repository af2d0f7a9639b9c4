"""Who owns a name that several objects claim: the oldest one. Pure; the gateway (routing) asks here, the
operator does not yet: a later claimer's conditions do not tell it so.

A later claimer never moves traffic: it waits until the older one is gone.
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

    @property
    def age_order(self) -> tuple[str, str]:
        """Smaller is older. Kubernetes writes creationTimestamp in UTC with whole seconds, so text order is time order."""
        return self.created, self.uid


def resolve(claims: Iterable[Claim]) -> dict[str, Claim]:
    """Name → the claim that holds it."""
    held: dict[str, Claim] = {}
    for claim in claims:
        holder = held.get(claim.name)
        if holder is None or claim.age_order < holder.age_order:
            held[claim.name] = claim
    return held
