"""Brings LoraAdapters to the replicas of one service, and writes their statuses. A part of the service's run (reconcile.py).

Level-triggered: each run computes the catalogue anew and sends it to every ready replica that has not confirmed all of it. What replicas
confirmed is in memory only, so a restarted operator asks again, and so does any run after a container was restarted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

import structlog
from pagoda_placement.values import stamp

from pagoda_operator.api.adapters import Adapter, CatalogueOrder, Entry, Phase, Progress
from pagoda_operator.api.errors import Conflict
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import ADAPTERS, NAMESPACES, Key, Observed
from pagoda_operator.client.catalogues import Catalogues
from pagoda_operator.decide.adapters.catalogue import Catalogue, Host, catalogue
from pagoda_operator.decide.adapters.places import Places, Replica, place
from pagoda_operator.decide.adapters.status import Replicas, refused_status, status
from pagoda_operator.run.apply import Cluster, apply_status
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.triggers import NameOwners

# Seconds to the next look: while replicas fetch and load, and while one fails or is silent.
_SOON: Final = 1.0
_LATER: Final = 5.0
# A replica that could not load an adapter is tried again after so long, if others can have it.
_ELSEWHERE: Final = 300.0
_PENDING: Final = Progress(Phase.PENDING)


class _Answer(NamedTuple):
    """What a replica said last of which catalogue, and how often its container had been restarted by then."""

    restarts: int
    sent: _Sent
    found: Mapping[str, Progress]

    @property
    def complete(self) -> bool:
        return all(one.phase in (Phase.LOADED, Phase.ON_DISK) for one in self.found.values())

    def about(self, entry: Entry) -> bool:
        """Whether it is of this entry, or of the same one before the digest was known that was found."""
        found = self.found.get(entry.name, _PENDING)
        return entry in self.sent.entries or (found.digest == entry.digest and entry._replace(digest="") in self.sent.entries)


class _Sent(NamedTuple):
    """A replica's catalogue, and the generation at which it became that."""

    entries: tuple[Entry, ...]
    generation: int


@dataclass
class _Known:
    """Of one service, by pod uid: what each replica should have, and what it answered last."""

    generation: int = 0
    sent: dict[str, _Sent] = field(default_factory=dict)
    answers: dict[str, _Answer] = field(default_factory=dict)
    # Until when each replica is the last choice for an entry that it could not load, in Unix seconds.
    failures: dict[tuple[str, Entry], float] = field(default_factory=dict)

    def found(self, pod: Pod) -> Mapping[str, Progress]:
        """How far the adapters are there. A replica that is silent since an entry changed has said nothing of that one: the digest of the
        files before would be taken for that of the new ones."""
        answer, sent = self.answers.get(pod.uid), self.sent.get(pod.uid)
        if answer is None or sent is None:
            return {}
        return {entry.name: answer.found[entry.name] for entry in sent.entries if entry.name in answer.found and answer.about(entry)}

    def confirmed(self, pod: Pod) -> bool:
        """Whether it has all that it should have."""
        answer = self.answers.get(pod.uid)
        return answer is not None and answer.sent.generation == self.sent[pod.uid].generation and answer.complete


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

    def sole(self, key: Key) -> Mapping[str, int]:
        """How many adapters no other replica has in memory, by the pod's uid."""
        answers = self._known[key].answers if key in self._known else {}
        loaded = {uid: _loaded(answer.found) for uid, answer in answers.items()}
        copies = Counter(name for names in loaded.values() for name in names)
        return {uid: sum(copies[name] == 1 for name in names) for uid, names in loaded.items()}

    async def run(self, key: Key, observed: Observed) -> float | None:
        """Sends what is to be sent and writes statuses; returns in how many seconds to look again."""
        wanted = self.catalogue(key, observed)
        enabled = observed.spec is not None and observed.spec.adapters is not None
        if not enabled and not wanted.refused:
            self._known.pop(key, None)
            return None
        pods = [pod for pod in observed.pods if enabled and pod.ready and pod.address and not pod.deleting]
        known = self._known.setdefault(key, _Known())
        _forget(known, pods, self._clock().timestamp())
        places = _place(known, wanted, observed, pods)
        self._learn(known, places)
        silent = await self._send(known, pods)
        wrote = await self._write(wanted, places, {pod.name: known.found(pod) for pod in pods}, observed.wanted)
        return 0.0 if wrote else _again(known, pods, silent=silent)

    async def orphaned(self, key: Key) -> None:
        """The service is gone, or was never there."""
        self._known.pop(key, None)
        await self._write(self.catalogue(key, None), Places({}, {}), {}, 0)

    def _host(self, key: Key, observed: Observed | None) -> Host | None:
        if observed is None:
            return None
        names = observed.spec.model.served_names if observed.spec is not None else ()
        return Host(key, observed.spec, names or (key.name,), self._owners.owner, self._caches.all(NAMESPACES), self._owners.reserved)

    def _learn(self, known: _Known, places: Places) -> None:
        """With a new generation where the catalogue of a replica is another one."""
        fresh = {uid: entries for uid, entries in places.entries.items() if uid not in known.sent or known.sent[uid].entries != entries}
        if fresh:
            known.generation = max(known.generation + 1, int(self._clock().timestamp() * 1000))
        known.sent = {uid: _Sent(fresh[uid], known.generation) if uid in fresh else known.sent[uid] for uid in places.entries}

    async def _send(self, known: _Known, pods: Iterable[Pod]) -> bool:
        """To the replicas that have not confirmed all of it; returns whether one did not answer."""
        late = {pod.uid: pod for pod in pods if not known.confirmed(pod)}
        orders = [
            CatalogueOrder(pod.name, uid, pod.address, known.sent[uid].generation, known.sent[uid].entries) for uid, pod in late.items()
        ]
        answers = await self._catalogues.give(orders)
        until = self._clock().timestamp() + _ELSEWHERE
        for uid, found in answers.items():
            if found is None:
                continue
            known.answers[uid] = _Answer(late[uid].restarts, known.sent[uid], found)
            failed = (entry for entry in known.sent[uid].entries if found.get(entry.name, _PENDING).phase is Phase.FAILED)
            known.failures |= {(uid, entry): until for entry in failed}
        return any(found is None for found in answers.values())

    async def _write(self, wanted: Catalogue, places: Places, found: Mapping[str, Mapping[str, Progress]], replicas: int) -> bool:
        """Every status that differs; returns whether a write changed what the catalogue is made of."""
        now, changed = stamp(self._clock().timestamp()), False
        for adapter in wanted.accepted:
            name = adapter.served_name
            own = {pod: found[pod].get(name, _PENDING) for pod in places.replicas.get(adapter.uid, ())}
            said = status(adapter, own, Replicas(len(found), replicas), now)
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


def _forget(known: _Known, pods: Iterable[Pod], now: float) -> None:
    """Answers of pods that are gone, and of containers that were restarted since; failures that were long ago."""
    here = {pod.uid: pod for pod in pods}
    known.answers = {uid: one for uid, one in known.answers.items() if uid in here and one.restarts == here[uid].restarts}
    known.failures = {which: until for which, until in known.failures.items() if which[0] in here and now < until}


def _place(known: _Known, wanted: Catalogue, observed: Observed, pods: Iterable[Pod]) -> Places:
    fails = {pod.uid: frozenset(entry for uid, entry in known.failures if uid == pod.uid) for pod in pods}
    replicas = [Replica(pod.name, pod.uid, pod.node, _loaded(known.found(pod)), fails[pod.uid]) for pod in pods]
    adapters = observed.spec.adapters if observed.spec is not None else None
    return place(wanted.accepted, replicas, adapters.max_loaded if adapters is not None else 0)


def _loaded(found: Mapping[str, Progress]) -> frozenset[str]:
    return frozenset(name for name, one in found.items() if one.phase is Phase.LOADED)


def _again(known: _Known, pods: Iterable[Pod], *, silent: bool) -> float | None:
    late = [known.found(pod) for pod in pods if not known.confirmed(pod)]
    if not late:
        return None
    phases = {one.phase for found in late for one in found.values()}
    return _SOON if phases & {Phase.PENDING, Phase.FETCHING} and not silent else _LATER
