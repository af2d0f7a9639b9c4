"""What KEDA is answered for a trigger: which figures of a service it asked for, their targets and their values. Pure.

Called by keda.py. A figure is a sum over replicas, because KEDA's HPA divides it by the target: replicas = ceil(value / target).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from pagoda_contracts.pb.demand_pb2 import VERDICT_FRESH, VERDICT_SUSPECT, ServiceDemand


class TriggerError(ValueError):
    """A trigger's metadata is not valid. Says which value and what is accepted."""


class Trigger(NamedTuple):
    """A trigger, parsed: the service ("namespace/name") and the target of each figure that it asked for."""

    service: str
    targets: Mapping[str, float]


class Load(NamedTuple):
    """A service's own message at this gateway, and how many requests the other gateways hold for it."""

    demand: ServiceDemand
    held_elsewhere: int

    @property
    def requests(self) -> int:
        """All requests that the service has: held, waiting and running."""
        return self.queue + self.demand.running

    @property
    def queue(self) -> int:
        """Requests that wait, at gateways and in replicas."""
        return self.demand.held + self.held_elsewhere + self.demand.waiting

    @property
    def kv_utilization(self) -> float:
        """KV blocks in use, in replicas: 1.8 if two replicas use 0.9 of theirs."""
        demand = self.demand
        return demand.blocks_used / demand.blocks_total * self._heard() if demand.blocks_total else 0.0

    def unheard(self) -> bool:
        """Whether the service has replicas and none of them is heard: nothing is known, which is not "nothing to do"."""
        return bool(self.demand.endpoints) and not self._heard()

    def _heard(self) -> int:
        return sum(endpoint.verdict in (VERDICT_FRESH, VERDICT_SUSPECT) for endpoint in self.demand.endpoints)


_FIGURES: Final[Mapping[str, Callable[[Load], float]]] = {
    "requests": lambda load: load.requests,
    "queueDepth": lambda load: load.queue,
    "kvUtilization": lambda load: load.kv_utilization,
}
# What KEDA itself reads of a trigger's metadata.
_KEDAS: Final = frozenset({"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsCertFile"})


def parse_trigger(namespace: str, metadata: Mapping[str, str]) -> Trigger:
    """Returns the trigger of a ScaledObject in this namespace; TriggerError if its metadata is not valid."""
    figures = ", ".join(_FIGURES)
    if unknown := sorted(metadata.keys() - _KEDAS - _FIGURES.keys() - {"service"}):
        raise TriggerError(f"metadata has the unknown field {unknown[0][:64]!r}; it may have service, {figures}")
    if not metadata.get("service"):
        raise TriggerError("metadata.service is missing; set it to the name of an InferenceService in the ScaledObject's namespace")
    targets = {name: _target(name, metadata[name]) for name in _FIGURES if name in metadata}
    if not targets:
        raise TriggerError(f"metadata has no target; set at least one of {figures} to its value per replica")
    return Trigger(f"{namespace}/{metadata['service']}", targets)


def values(trigger: Trigger, load: Load, name: str) -> dict[str, float]:
    """Returns the value of one figure, or of all that the trigger asked for if the name is empty."""
    if name and name not in trigger.targets:
        raise TriggerError(f"the trigger has no target for {name[:64]!r}; it has {', '.join(trigger.targets)}")
    return {figure: float(_FIGURES[figure](load)) for figure in trigger.targets if name in ("", figure)}


def _target(name: str, text: str) -> float:
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if not 0 < target < math.inf or (name == "kvUtilization" and target > 1):
        accepted = "a number above 0 and at most 1" if name == "kvUtilization" else "a number above 0"
        raise TriggerError(f"metadata.{name} is {text[:64]!r}; it must be {accepted}")
    return target
