"""Since when pods find no node for another reason than a lack of free devices. Asked by `reconcile`, read by `sides`.

The scheduler's condition keeps the time at which no node was found first, whatever the reason becomes; a pod may wait for devices for
hours before the claim that it mounts is deleted. So the change is remembered as it is seen. A process that did not see it goes by when
the scheduler last wrote of the pod, by the API server's bookkeeping, which is never before it. From then on time is counted by a clock
that nobody sets, as in ages.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import Key


class Unschedulable:
    """Of all services."""

    def __init__(self, steady: Callable[[], float] | None = None) -> None:
        # None: the clock on the wall, whoever sets it.
        self._steady = steady
        # Service → pod's uid → since when, by the steady clock; None while it is short of devices.
        self._since: dict[Key, dict[str, float | None]] = {}

    def of(self, key: Key, pods: Iterable[Pod], now: float) -> Mapping[str, float]:
        """In Unix seconds as of `now`, by the uid of each pod that lacks something else."""
        known, steady = self._since.get(key, {}), now if self._steady is None else self._steady()
        seen = {pod.uid: _since(pod, known, now, steady) for pod in pods if pod.unschedulable and not pod.assigned}
        self._since[key] = seen
        if not seen:
            self.forget(key)
        return {uid: now - (steady - since) for uid, since in seen.items() if since is not None}

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self._since.pop(key, None)


def _since(pod: Pod, known: Mapping[str, float | None], now: float, steady: float) -> float | None:
    if pod.short:
        return None
    if pod.uid in known:
        since = known[pod.uid]
        return steady if since is None else since
    return steady - max(0.0, now - max(pod.unscheduled_since or pod.created, min(now, pod.unscheduled_told or 0.0)))
