"""Keeps what scaling remembers of each service, and asks decide/scale when the API server or a gateway has something new.

Called by `reconcile` with the objects, and by `signals` with every measure (`demand_changed`, which neither reads nor writes objects). Its
memory ends with the process; what must outlast it is in the status and in a ConfigMap, written hourly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from pagoda_contracts.names import HISTORY_KEY
from pydantic import ValidationError

from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.signals import Decision
from pagoda_operator.api.state import CONFIG_MAPS, Child, Key, Observed, Reader, explain
from pagoda_operator.client.signals import Signals
from pagoda_operator.decide.placement import placeable
from pagoda_operator.decide.plan import owner_of
from pagoda_operator.decide.render.writes import Apply, Create
from pagoda_operator.decide.scale.bounds import refused
from pagoda_operator.decide.scale.inputs import Basis, Memory, Moment, basis_of
from pagoda_operator.decide.scale.learned import Learned, decode, encode, lessons, loaded, page_manifest, page_name
from pagoda_operator.decide.scale.scaling import decide, next_decision_s
from pagoda_operator.run.apply import Cluster, apply

PAGE_EVERY_S: Final = 3600.0
# Between two decisions on a service without requests.
IDLE_LOOK_S: Final = 60.0


@dataclass(frozen=True)
class _Kept:
    uid: str
    basis: Basis
    memory: Memory
    starting: frozenset[str]
    decision: Decision | None = None
    # When it was decided, by the steady clock.
    decided_at: float = float("-inf")


class Scaler:
    """Decides how many replicas each service has. One per process; `steady` is a clock that is never set, `wall` the wall clock."""

    def __init__(self, cluster: Cluster, signals: Signals, steady: Callable[[], float], wall: Callable[[], float]) -> None:
        self._cluster, self._signals, self._steady, self._wall = cluster, signals, steady, wall
        self._kept: dict[Key, _Kept] = {}

    async def complete(self, key: Key, observed: Observed) -> Observed:
        """What was observed, with the decision on its replicas."""
        if not _scales(observed):
            self.forget(key)
            return observed
        kept, moment = self._kept.get(key), self._moment()
        if kept is None or kept.uid != observed.meta.uid:
            kept = await self._begin(observed, moment)
        learned = lessons(kept.memory.learned, observed.pods, kept.starting)
        memory = replace(kept.memory, learned=learned)
        observed = replace(observed, placeable=placeable(observed))
        starting = frozenset(pod.name for pod in observed.pods if pod.counts and not pod.ready)
        known = _Kept(kept.uid, basis_of(observed, memory), memory, starting)
        decided = self._decide(key, known, moment)
        return replace(observed, scaling=decided.decision, starts=learned.starts)

    def foresee(self, key: Key, observed: Observed) -> Observed:
        """What was observed, with the decision that a service without a quota would get. It is not remembered."""
        if not _scales(observed):
            return observed
        kept, moment = self._kept.get(key), self._moment()
        known = kept.memory if kept is not None and kept.uid == observed.meta.uid else None
        observed = replace(observed, placeable=placeable(observed))
        basis = basis_of(observed, known)
        memory = known or Memory(moment.steady, basis.current, reported=_last_reason(observed), began=moment.wall)
        decision, _ = decide(basis, self._signals.of(key, moment.steady), memory, moment)
        return replace(observed, scaling=decision)

    def demand_changed(self, key: Key, *, idle: bool = False) -> bool:
        """Whether new demand changes how many replicas the service shall have, or the reason, so that a run is needed.

        `idle`: it got no request for ten minutes. Then another bin without requests decides nothing new, and deciding it took 1.3 % of a
        core for 500 services. `again` says what time alone changes.
        """
        kept = self._kept.get(key)
        if kept is None:
            return False
        if idle and self._steady() - kept.decided_at < IDLE_LOOK_S:
            learned = loaded(kept.memory.learned, 0.0, self._wall(), kept.basis.day_s)
            self._kept[key] = replace(kept, memory=replace(kept.memory, learned=learned))
            return False
        auto = kept.basis.spec.mode == "Auto"  # in other modes the Deployments have the number
        basis = replace(kept.basis, current=kept.memory.wanted) if auto else kept.basis
        decided = self._decide(key, replace(kept, basis=basis), self._moment())
        return _number(decided.decision) != _number(kept.decision) or decided.memory.reported != kept.memory.reported

    def again(self, key: Key) -> float | None:
        """In how many seconds the decision may change without any event."""
        kept, moment = self._kept.get(key), self._moment()
        if kept is None:
            return None
        signals = self._signals.of(key, moment.steady)
        decision = next_decision_s(kept.basis, signals, kept.memory, kept.decision, moment)
        page = max(1.0, self._page_due(kept.memory) - moment.wall) if kept.memory.learned.busy else None
        return min((wait for wait in (decision, page) if wait is not None), default=None)

    def forget(self, key: Key) -> None:
        """The service is gone, or a person scales it."""
        self._kept.pop(key, None)

    async def save_history(self, key: Key, observed: Observed) -> None:
        """Writes what was learned, at most hourly and only after load."""
        kept = self._kept.get(key)
        if kept is None or not kept.memory.learned.busy or self._wall() < self._page_due(kept.memory):
            return
        learned = replace(kept.memory.learned, busy=False, written_at=self._wall())
        self._kept[key] = replace(kept, memory=replace(kept.memory, learned=learned))
        await _write(self._cluster, observed, encode(learned, self._wall()))

    def _decide(self, key: Key, known: _Kept, moment: Moment) -> _Kept:
        signals = self._signals.of(key, moment.steady)
        decision, memory = decide(known.basis, signals, known.memory, moment)
        self._kept[key] = replace(known, memory=memory, decision=decision, decided_at=moment.steady)
        return self._kept[key]

    async def _begin(self, observed: Observed, moment: Moment) -> _Kept:
        """What is known of a service that is new to this process."""
        read = await _read(self._cluster, observed)
        learned = replace(read, written_at=min(read.written_at, moment.wall))
        memory = Memory(moment.steady, 0, learned=learned, reported=_last_reason(observed), reported_at=moment.steady, began=moment.wall)
        basis = basis_of(observed, None)
        return _Kept(observed.meta.uid, basis, replace(memory, wanted=basis.current), frozenset())

    @staticmethod
    def _page_due(memory: Memory) -> float:
        return max(memory.began, memory.learned.written_at) + PAGE_EVERY_S

    def _moment(self) -> Moment:
        return Moment(self._steady(), self._wall())


def _scales(observed: Observed) -> bool:
    wanted = observed.spec.scaling if observed.spec else None
    return wanted is not None and wanted.mode != "Manual" and not refused(wanted)


def _last_reason(observed: Observed) -> str:
    """The reason that a predecessor reported for the number of replicas, if it decided it."""
    return (observed.status.scaling.reason or "") if observed.status.scaling else ""


def _number(decision: Decision | None) -> int | None:
    return None if decision is None else decision.replicas


async def _read(reader: Reader, observed: Observed) -> Learned:
    """What a predecessor wrote; nothing if that is gone or not valid."""
    body = await reader.get(CONFIG_MAPS, observed.meta.namespace, page_name(observed))
    if body is None or not Child(CONFIG_MAPS, body).belongs_to(observed.meta.uid):
        return Learned()
    data: Any = body.get("data") or {}
    try:
        return decode(str(data.get(HISTORY_KEY, "")))
    except ValidationError as error:
        structlog.get_logger().warning("history_ignored", namespace=observed.meta.namespace, name=page_name(observed), error=explain(error))
        return Learned()


async def _write(cluster: Cluster, observed: Observed, page: str) -> None:
    """Writes the history apart from the plan's children: no rollout waits for it, and a failure loses one hour."""
    log = structlog.get_logger().bind(namespace=observed.meta.namespace, name=page_name(observed))
    manifest = page_manifest(owner_of(observed), page)
    try:
        body = await cluster.get(CONFIG_MAPS, observed.meta.namespace, page_name(observed))
        live = None if body is None else Child(CONFIG_MAPS, body)
        if live is not None and not live.belongs_to(observed.meta.uid):
            log.warning("history_not_written", error="a ConfigMap of that name belongs to another owner")
            return
        await apply(cluster, (Create(CONFIG_MAPS, manifest) if live is None else Apply(CONFIG_MAPS, manifest, live),))
        log.info("history_written", bytes=len(page))
    except ClusterError as error:
        log.warning("history_not_written", error=str(error))
