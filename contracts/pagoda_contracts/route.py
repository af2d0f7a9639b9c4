"""The `x-pagoda-route` header: why a request went where it went. Written by the gateway, parsed by tests and the CLI."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# Words of `reason`: why this endpoint. A request that was held or picked again says that instead, with the cause behind the dash:
# `held-loading`, `repick-draining`. On an error's answer the endpoint may be NO_ENDPOINT.
REASON_LEAST_LOADED: Final = "least-loaded"
# The endpoint has the request's session, or a part of its prompt in the cache.
REASON_SESSION: Final = "session"
REASON_PREFIX: Final = "prefix"
REASON_ONLY_ENDPOINT: Final = "only-endpoint"
REASON_ONLY_SUSPECT: Final = "only-suspect"
# Every replica fails its deep check or has a faulty device: then the check may be what is wrong, and some answer is better than none.
REASON_ONLY_UNSOUND: Final = "only-unsound"
# No replica took the request in time; an API outside of the cluster answered.
REASON_OVERFLOW: Final = "overflow"
HELD_PREFIX: Final = "held-"
# Causes of HELD_PREFIX beside the verdicts on replicas: every replica has as many requests as it can run, or others waited before.
HELD_FULL: Final = "full"
HELD_IN_TURN: Final = "turn"
REPICK_PREFIX: Final = "repick-"
NO_ENDPOINT: Final = "none"

_FIELD = re.compile(r"^(endpoint|reason|held_ms|attempt)=([A-Za-z0-9_.:\[\]-]{1,128})$")


class Route(NamedTuple):
    """One routing decision: `endpoint` "ip:port", `reason` as above, `held_ms` time held, `attempt` from 1."""

    endpoint: str
    reason: str
    held_ms: int
    attempt: int


def format_route(route: Route) -> str:
    """The header's value: `endpoint=10.1.0.7:8000; reason=least-loaded; held_ms=0; attempt=1`."""
    return f"endpoint={route.endpoint}; reason={route.reason}; held_ms={route.held_ms}; attempt={route.attempt}"


def parse_route(value: str) -> Route:
    """Inverse of `format_route`; ValueError names what is malformed."""
    fields: dict[str, str] = {}
    for part in value.split("; "):
        match = _FIELD.match(part)
        if match is None:
            raise ValueError(f"route header: {part!r} is not one of endpoint=, reason=, held_ms=, attempt=")
        fields[match[1]] = match[2]
    missing = {"endpoint", "reason", "held_ms", "attempt"} - fields.keys()
    if missing:
        raise ValueError(f"route header lacks {', '.join(sorted(missing))}: {value!r}")
    return Route(fields["endpoint"], fields["reason"], int(fields["held_ms"]), int(fields["attempt"]))
