"""What a service holds now and will hold: per Deployment, from quorum reads. Pure; made by `observe`, read by the ledger.

Pods of every owner of the service's name count, a predecessor's too: they hold devices until they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagoda_contracts.names import ANNOTATION_RESERVED, LABEL_ACCELERATOR, LABEL_REVISION, LABEL_SERVICE_UID

from pagoda_operator.api.quota_devices import Devices, held, times, total

Json = Mapping[str, Any]
Mark = tuple[str | None, ...]
_FINISHED = ("Succeeded", "Failed")
_DIGITS = 7


@dataclass(frozen=True)
class Holding:
    """One Deployment's replicas. `leaving`: pods that end, or that its controller may be ending because there are more than `target`;
    `reserved`: how many it keeps its devices for though it asks for fewer, while a sick replica makes way for another."""

    name: str
    need: Devices
    target: int
    leaving: int = 0
    reserved: int = 0
    mark: Mark = ()

    def charge(self, target: int | None = None) -> Devices:
        """Held or on its way, were the target this: those that leave hold what they have until they are gone."""
        return times(self.need, max((self.target if target is None else target) + self.leaving, self.reserved))

    @property
    def lasting(self) -> Devices:
        """Held once all that leaves is gone."""
        return times(self.need, max(self.target, self.reserved))


def holdings(deployments: Iterable[Json], pods: Iterable[Json]) -> tuple[Holding, ...]:
    """Of one service."""
    alive = [pod for pod in pods if pod.get("status", {}).get("phase") not in _FINISHED]
    mine = {mark_of(body["spec"]["template"]["metadata"]): body for body in deployments}
    orphans = [pod for pod in alive if mark_of(pod["metadata"]) not in mine]
    made = [_holding(body, mark, [pod for pod in alive if mark_of(pod["metadata"]) == mark]) for mark, body in mine.items()]
    return (*made, *(Holding(pod["metadata"]["name"], held(pod["metadata"], pod.get("spec") or {}), 0, 1) for pod in orphans))


def _holding(deployment: Json, mark: Mark, pods: list[Json]) -> Holding:
    """A pod above the target may be chosen to end this very moment, and a raised target would make another one beside it."""
    spec, meta = deployment["spec"], deployment["metadata"]
    going = "deletionTimestamp" in meta
    target = 0 if going else int(spec.get("replicas", 1))
    staying = sum("deletionTimestamp" not in pod["metadata"] for pod in pods)
    leaving = len(pods) - min(staying, target)
    need = held(spec["template"]["metadata"], spec["template"]["spec"])
    return Holding(meta["name"], need, target, leaving, 0 if going else reserved(meta), mark)


def reserved(meta: Json) -> int:
    """What a Deployment's annotation says; 0 where it says nothing that can be read."""
    said = str((meta.get("annotations") or {}).get(ANNOTATION_RESERVED, ""))
    return int(said) if said.isascii() and said.isdigit() and len(said) < _DIGITS else 0


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
