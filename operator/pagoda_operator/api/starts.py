"""The start of a replica, by its pod: the state of the fetch sidecar, when each step was reached, and how long each phase took. Pure.

`api/pods` reads the first two. The API server and the kubelet write whole seconds.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from pagoda_contracts.names import CONTAINER_DAEMON, CONTAINER_FETCH, EXIT_PERMANENT
from pagoda_placement.values import Json, unix


class Fetching(NamedTuple):
    """The state of a pod's fetch sidecar. `started`: the model is complete. The exit is that of its last run, if it ended.

    A percentage would be a status write each time it moves; the sidecar's probe and log have it.
    """

    running: bool = False
    started: bool = False
    exit_code: int | None = None
    exit_message: str = ""
    exit_reason: str = ""

    @property
    def permanent(self) -> bool:
        """Whether the fetch fails until a person repairs its cause."""
        return self.exit_code == EXIT_PERMANENT and not self.started

    @property
    def busy(self) -> bool:
        """Whether the model is being fetched, or an attempt failed."""
        return not self.started and (self.running or self.exit_code is not None)


class Steps(NamedTuple):
    """When a pod reached each step, in Unix seconds: it had a node, the sidecar began, the model was complete, the daemon began, and it was
    not ready any more. 0.0 for a step that it has not reached, and for a container that was started again: each start would be a write."""

    scheduled: float = 0.0
    fetching: float = 0.0
    fetched: float = 0.0
    loading: float = 0.0
    unready: float = 0.0


class Phases(NamedTuple):
    """Whole seconds of a start by phase: until the pod had a node; images and volumes of both containers; the fetch; the load; from its end
    to Ready, which only the replica itself knows."""

    scheduled: int = 0
    image: int = 0
    fetch: int = 0
    load: int = 0
    warm: int = 0


def phases(created: float, steps: Steps, ready: float, warm_s: float = 0.0) -> Phases:
    """The phases from a pod's creation to Ready, in Unix seconds; `warm_s`: the length of the last one.

    They add up to the time between these, whatever is missing, out of order or from a clock that is wrong: a step counts as reached between
    the one before it and the end.
    """
    marks = [int(created)]
    end = max(marks[0], int(ready))
    for at in (steps.scheduled, steps.fetching, steps.fetched, steps.loading, end - round(warm_s)):
        marks.append(min(max(marks[-1], int(at)), end))
    scheduled, sidecar, fetch, daemon, load, warm = (after - before for before, after in pairwise([*marks, end]))
    return Phases(scheduled, sidecar + daemon, fetch, load, warm)


def parse_steps(body: Json) -> Steps:
    """The steps of a pod. Without a sidecar, the condition Initialized says nothing."""
    status = body.get("status", {})
    sidecar = container_of(status, CONTAINER_FETCH)
    return Steps(
        scheduled=_since(body, "PodScheduled"),
        fetching=_began(sidecar),
        fetched=_since(body, "Initialized") if sidecar else 0.0,
        loading=_began(container_of(status, CONTAINER_DAEMON)),
        unready=_since(body, "Ready", "False"),
    )


def parse_fetching(status: Json) -> Fetching:
    """Returns the sidecar's state; a pod without one has a sidecar that never ran."""
    own = container_of(status, CONTAINER_FETCH)
    ended = ended_of(own)
    return Fetching(
        running="running" in own.get("state", {}),
        started=bool(own.get("started")),
        exit_code=ended.get("exitCode"),
        exit_message=ended.get("message", ""),
        exit_reason=ended.get("reason", ""),
    )


def containers_of(status: Json) -> list[Json]:
    """The states of a pod's containers, sidecars first."""
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def container_of(status: Json, name: str) -> Json:
    """The state of one container; empty if it has none yet."""
    return next((container for container in containers_of(status) if container["name"] == name), {})


def ended_of(container: Json) -> Json:
    """How a container's last run ended; empty if none has."""
    return container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated") or {}


def condition_of(body: Json, kind: str) -> Json:
    """Returns a condition of an object's status; empty if absent."""
    conditions: list[Json] = body.get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def _since(body: Json, kind: str, status: str = "True") -> float:
    found = condition_of(body, kind)
    return (unix(found.get("lastTransitionTime")) or 0.0) if found.get("status") == status else 0.0


def _began(container: Json) -> float:
    running = container.get("state", {}).get("running") or {}
    return 0.0 if container.get("restartCount") else unix(running.get("startedAt")) or 0.0
