"""What a pod's fetch sidecar does, as `status` tells it. Pure; parsed with the pod by `state`.

How far the model is stays out of the status: a percentage that moves would be a write each time. The sidecar's probe and log tell it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pagoda_contracts.names import CONTAINER_FETCH, EXIT_PERMANENT


class Fetching(NamedTuple):
    """The sidecar of a pod. `started`: the model is complete. The exit is that of its last run, where it ended."""

    running: bool = False
    started: bool = False
    exit_code: int | None = None
    exit_message: str = ""
    exit_reason: str = ""

    @property
    def permanent(self) -> bool:
        """Whether only a person cures what keeps the model from coming."""
        return self.exit_code == EXIT_PERMANENT and not self.started

    @property
    def busy(self) -> bool:
        """Whether the model is on its way, or was tried for."""
        return not self.started and (self.running or self.exit_code is not None)


def parse_fetching(status: Mapping[str, Any]) -> Fetching:
    """From a pod's status; a pod without a sidecar has one that never ran."""
    own: Mapping[str, Any] = next((c for c in status.get("initContainerStatuses", []) if c["name"] == CONTAINER_FETCH), {})
    state = own.get("state", {})
    ended = state.get("terminated") or own.get("lastState", {}).get("terminated") or {}
    return Fetching(
        running="running" in state,
        started=bool(own.get("started")),
        exit_code=ended.get("exitCode"),
        exit_message=ended.get("message", ""),
        exit_reason=ended.get("reason", ""),
    )


def tell(pod: str, fetching: Fetching) -> str:
    """One sentence. It names what ended the last try, also while the next one runs: that is what people look for."""
    if fetching.exit_code in (None, 0):
        return f"{pod} fetches the model"
    why = " ".join(fetching.exit_message.split()) or fetching.exit_reason or "no reason given"
    return f"{pod} fetches the model; its last attempt ended with exit code {fetching.exit_code}: {why}"
