"""What a service holds now and will hold, by Deployment. Pure; made by `observe`, read by the ledger.

Pods of every owner of the service's name count, a predecessor's too: they hold devices until they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_contracts.names import ANNOTATION_WITH_SUCCESSOR, LABEL_ACCELERATOR, LABEL_REVISION, LABEL_SERVICE_UID

from pagoda_operator.api.quota_devices import Devices, held, times, total

Json = Mapping[str, Any]
Mark = tuple[str | None, ...]
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Holding:
    """One Deployment's replicas. `leaving`: pods that end, or that its controller may be ending because there are more than `target`;
    `extra`: whether one of them is an unhealthy one's successor."""

    name: str
    need: Devices
    target: int
    leaving: int = 0
    extra: bool = False

    def charge(self, target: int | None = None) -> Devices:
        """Held or on its way, were the target this: those that leave hold what they have until they are gone."""
        return times(self.need, (self.target if target is None else target) + self.leaving)

    @property
    def lasting(self) -> Devices:
        """Held once all that leaves is gone."""
        return times(self.need, self.target)


def holdings(deployments: Iterable[Json], pods: Iterable[Json]) -> tuple[Holding, ...]:
    """Of one service."""
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in _FINISHED]
    mine = {mark_of(body["spec"]["template"]["metadata"]): body for body in deployments}
    orphans = [pod for pod in alive if mark_of(pod["metadata"]) not in mine]
    made = [_holding(body, [pod for pod in alive if mark_of(pod["metadata"]) == mark]) for mark, body in mine.items()]
    return (*made, *(Holding(pod["metadata"]["name"], held(pod["metadata"], pod.get("spec") or {}), 0, 1) for pod in orphans))


def _holding(deployment: Json, pods: list[Json]) -> Holding:
    """A pod above the target may be chosen to end this very moment, and a raised target would make another one beside it."""
    spec, meta = deployment["spec"], deployment["metadata"]
    going = "deletionTimestamp" in meta
    target = 0 if going else int(spec.get("replicas", 1))
    staying = sum("deletionTimestamp" not in pod["metadata"] for pod in pods)
    leaving = len(pods) - min(staying, target)
    need = held(spec["template"]["metadata"], spec["template"]["spec"])
    return Holding(meta["name"], need, target, leaving, with_successor(meta, target))


def with_successor(meta: Json, replicas: int) -> bool:
    """Whether one of a Deployment's replicas is an unhealthy one's successor, by its annotation. Who changed the number since has undone
    it."""
    return replicas > 1 and (meta.get("annotations") or {}).get(ANNOTATION_WITH_SUCCESSOR) == str(replicas)


def mark_of(meta: Json) -> Mark:
    """By which a Deployment's template and its pods are known as each other's."""
    labels = meta.get("labels") or {}
    return tuple(labels.get(name) for name in (LABEL_SERVICE_UID, LABEL_REVISION, LABEL_ACCELERATOR))


def charge(found: Iterable[Holding]) -> Devices:
    """All that the holdings are charged."""
    return total(holding.charge() for holding in found)


def lasting(found: Iterable[Holding]) -> Devices:
    """All that stays once what leaves is gone."""
    return total(holding.lasting for holding in found)
