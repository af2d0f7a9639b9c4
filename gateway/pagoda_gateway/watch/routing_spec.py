"""What the gateway reads of an InferenceService's `spec.routing`. Called by cluster.py and static_file.py.

The schema refuses what is no duration. An object from before the schema has the gateway's own limit there.
"""

from __future__ import annotations

import msgspec
from pagoda_contracts.units import parse_duration

from pagoda_gateway.watch.services import Hold, Overflow, Policy

_AFTER_S = 10.0


class HoldSpec(msgspec.Struct, rename="camel", frozen=True):
    """`routing.hold`."""

    timeout: str | None = None
    max_requests: int | None = None


class OverflowSpec(msgspec.Struct, rename="camel", frozen=True):
    """`routing.overflow`."""

    target: str = ""
    model: str = ""
    after: str | None = None
    queue_depth: int = 16


class RoutingSpec(msgspec.Struct, frozen=True):
    """`spec.routing`."""

    policy: str = ""
    hold: HoldSpec = HoldSpec()
    overflow: OverflowSpec | None = None

    def kind(self) -> Policy:
        """How replicas are picked."""
        return "LeastLoad" if self.policy == "LeastLoad" else "PrefixAware"

    def holds(self) -> Hold:
        """How requests are held."""
        return Hold(_seconds(self.hold.timeout), self.hold.max_requests)

    def overflows(self) -> Overflow | None:
        """Where requests go that are held for too long; None: nowhere."""
        spec = self.overflow
        if spec is None or not spec.target:
            return None
        after_s = _seconds(spec.after)
        return Overflow(spec.target, spec.model, _AFTER_S if after_s is None else after_s, spec.queue_depth)


def _seconds(text: str | None) -> float | None:
    try:
        return parse_duration(text) if text is not None else None
    except ValueError:
        return None
