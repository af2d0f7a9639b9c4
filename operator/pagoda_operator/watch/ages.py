"""How long ago something happened to a service, counted by a clock that nobody sets. Made by process.py, asked by `reconcile`.

A time in an object is by the wall clock of whoever wrote it, which may jump. It is compared with ours once, when it is first seen. From
then on its age grows by the steady clock. A time in the future counts as now: a wait for it lasts as long as it should, not as long as the
jump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import Key
from pagoda_operator.inventory.values import unix

# A service has three or four stamps at a time; a cache that is late may show the ones before.
_KEPT = 8


class Ages:
    """Of all services. `steady` is the clock that nobody sets; without it the caller's wall clock is used."""

    def __init__(self, steady: Callable[[], float] | None = None) -> None:
        self._steady = steady
        # Service → stamp → when that was, by the steady clock.
        self._began: dict[Key, dict[str, float]] = {}
        # Service → pod's uid → since when it is unschedulable, by the steady clock; None while it only lacks devices.
        self._unschedulable: dict[Key, dict[str, float | None]] = {}

    def of(self, key: Key, stamps: Iterable[str], wall: float) -> Mapping[str, float]:
        """Returns the age in seconds of each stamp that the operator wrote into the service's status. `wall` is the wall clock now."""
        now, known = self._now(wall), self._began.get(key, {})
        seen = {stamp: known.get(stamp, now - max(0.0, wall - since)) for stamp in stamps if (since := unix(stamp)) is not None}
        kept = {stamp: began for stamp, began in known.items() if stamp not in seen}
        if seen or kept:
            self._began[key] = dict(list((kept | seen).items())[-_KEPT:])
        return {stamp: now - began for stamp, began in seen.items()}

    def unschedulable(self, key: Key, pods: Iterable[Pod], wall: float) -> Mapping[str, float]:
        """Returns since when, in Unix seconds by `wall`, each pod finds no node for another reason than a lack of free devices; by uid.

        The scheduler's condition keeps the time at which no node was found first, whatever the reason becomes: a pod may wait for devices
        for hours before the claim that it mounts is deleted. The change of the reason is therefore remembered as it is seen. A process that
        did not see it uses the time at which the scheduler last wrote of the pod, which the API server keeps.
        """
        known, now = self._unschedulable.get(key, {}), self._now(wall)
        seen = {pod.uid: _since(pod, known, wall, now) for pod in pods if pod.unschedulable and not pod.assigned}
        self._unschedulable[key] = seen
        if not seen:
            del self._unschedulable[key]
        return {uid: wall - (now - since) for uid, since in seen.items() if since is not None}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._began.pop(key, None)
        self._unschedulable.pop(key, None)

    def _now(self, wall: float) -> float:
        return wall if self._steady is None else self._steady()


def _since(pod: Pod, known: Mapping[str, float | None], wall: float, now: float) -> float | None:
    if pod.short:
        return None
    if pod.uid in known:
        since = known[pod.uid]
        return now if since is None else since
    return now - max(0.0, wall - max(pod.unscheduled_since or pod.created, min(wall, pod.unscheduled_reported or 0.0)))
