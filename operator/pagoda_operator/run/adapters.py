"""Brings LoraAdapters to the replicas of one service, and writes their statuses. A part of the service's run (reconcile.py).

Level-triggered: each run computes the catalogue anew and sends it to every ready replica that has not confirmed all of it. What replicas
confirmed is in memory only, so a restarted operator asks again, and so does any run after a container was restarted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import structlog

from pagoda_operator.api.adapters import Adapter, CatalogueOrder, Entry, Phase, Progress
from pagoda_operator.api.errors import Conflict
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import ADAPTERS, Key, Observed
from pagoda_operator.client.catalogues import Catalogues
from pagoda_operator.decide.adapters import Catalogue, Host, catalogue, refused_status, status
from pagoda_operator.run.apply import Cluster, apply_status
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.triggers import NameOwners

# Seconds to the next look: while replicas fetch and load, and while one fails or is silent.
_SOON: Final = 1.0
_LATER: Final = 5.0
_PENDING: Final = Progress(Phase.PENDING)


class _Answer(NamedTuple):
    """What a replica said last, and how often its container had been restarted by then."""

    restarts: int
    generation: int
    found: Mapping[str, Progress]

    @property
    def complete(self) -> bool:
        return all(one.phase is Phase.LOADED for one in self.found.values())


@dataclass
class _Known:
    """Of one service: the catalogue that was sent last, and the answers by pod uid."""

    entries: tuple[Entry, ...] | None = None
    generation: int = 0
    answers: dict[str, _Answer] = field(default_factory=dict)


class Adapters:
    """`clock` is the wall's: a generation is a time in milliseconds, so that a restarted operator of the same epoch begins above the
    last one."""

    def __init__(self, cluster: Cluster, caches: Caches, owners: NameOwners, catalogues: Catalogues, clock: Callable[[], datetime]) -> None:
        self._cluster, self._caches, self._owners, self._catalogues, self._clock = cluster, caches, owners, catalogues, clock
        self._known: dict[Key, _Known] = {}

    def catalogue(self, key: Key, observed: Observed | None) -> Catalogue:
        """Which adapters the service's replicas should have."""
        adapters = [one for one in self._caches.all(ADAPTERS) if one.service == key]
        return catalogue(self._host(key, observed), adapters) if adapters else Catalogue()

    async def run(self, key: Key, observed: Observed) -> float | None:
        """Sends what is to be sent and writes statuses; returns in how many seconds to look again."""
        wanted = self.catalogue(key, observed)
        enabled = observed.spec is not None and observed.spec.adapters is not None
        if not enabled and not wanted.refused:
            self._known.pop(key, None)
            return None
        pods = [pod for pod in observed.pods if enabled and pod.ready and pod.address and not pod.deleting]
        known = self._learn(key, wanted.entries, pods)
        silent = await self._send(known, pods)
        found = {pod.name: known.answers[pod.uid].found if pod.uid in known.answers else {} for pod in pods}
        wrote = await self._write(wanted, found, observed.wanted)
        return 0.0 if wrote else _again(known, pods, silent=silent)

    async def orphaned(self, key: Key) -> None:
        """The service is gone, or was never there."""
        self._known.pop(key, None)
        await self._write(self.catalogue(key, None), {}, 0)

    def _host(self, key: Key, observed: Observed | None) -> Host | None:
        if observed is None:
            return None
        names = observed.spec.model.served_names if observed.spec is not None else ()
        return Host(key, observed.spec, names or (key.name,), self._owners.owner)

    def _learn(self, key: Key, entries: tuple[Entry, ...], pods: Iterable[Pod]) -> _Known:
        """With a new generation if the catalogue is another one; answers of pods that are gone are forgotten."""
        known = self._known.setdefault(key, _Known())
        if known.entries != entries:
            known.entries = entries
            known.generation = max(known.generation + 1, int(self._clock().timestamp() * 1000))
        here = {pod.uid: pod for pod in pods}
        known.answers = {uid: one for uid, one in known.answers.items() if uid in here and one.restarts == here[uid].restarts}
        return known

    async def _send(self, known: _Known, pods: Iterable[Pod]) -> bool:
        """To the replicas that have not confirmed all of it; returns whether one did not answer."""
        late = {pod.uid: pod for pod in pods if not _confirmed(known, pod)}
        entries = known.entries or ()
        orders = [CatalogueOrder(pod.name, pod.uid, pod.address, known.generation, entries) for pod in late.values()]
        answers = await self._catalogues.give(orders)
        for uid, found in answers.items():
            if found is not None:
                known.answers[uid] = _Answer(late[uid].restarts, known.generation, found)
        return any(found is None for found in answers.values())

    async def _write(self, wanted: Catalogue, found: Mapping[str, Mapping[str, Progress]], replicas: int) -> bool:
        """Every status that differs; returns whether a write changed what the catalogue is made of."""
        now, changed = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ"), False
        for adapter in wanted.accepted:
            own = {pod: of.get(adapter.served_name, _PENDING) for pod, of in found.items()}
            said = status(adapter, own, replicas, now)
            changed |= await self._write_one(adapter, said) and said.get("digest", "") != adapter.digest
        for adapter, why in wanted.refused:
            await self._write_one(adapter, refused_status(adapter, why, now))
        return changed

    async def _write_one(self, adapter: Adapter, said: dict[str, Any]) -> bool:
        if said == adapter.raw_status:
            return False
        try:
            await apply_status(self._cluster, ADAPTERS, adapter.meta, said)
        except Conflict:  # deleted or edited by now: its event queues the service
            structlog.get_logger().info("adapter_changed", **adapter.key._asdict())
        return True


def _confirmed(known: _Known, pod: Pod) -> bool:
    answer = known.answers.get(pod.uid)
    return answer is not None and answer.generation == known.generation and answer.complete


def _again(known: _Known, pods: Iterable[Pod], *, silent: bool) -> float | None:
    late = [known.answers.get(pod.uid) for pod in pods if not _confirmed(known, pod)]
    if not late:
        return None
    phases = {one.phase for answer in late if answer is not None for one in answer.found.values()}
    return _SOON if phases & {Phase.PENDING, Phase.FETCHING} and not silent else _LATER
