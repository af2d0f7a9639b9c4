"""From how many replicas each Deployment should have to what each is asked for now, by way of drains. Pure; called by `plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import ANNOTATION_RELIEVED, ANNOTATION_RESERVED, LABEL_ACCELERATOR, LABEL_REVISION
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.orders import Order
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.signals import Seen
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.render.writes import Annotate
from pagoda_operator.decide.replicas.drain import Crew, Turn
from pagoda_operator.decide.replicas.swap import swap

_DEFAULT_TIMEOUT: str = DaemonConfig.model_fields["drain_timeout"].default


@dataclass(frozen=True)
class Steps:
    """The next steps of all Deployments: replicas to ask for by name, annotations, orders, and who is on the way out."""

    replicas: Mapping[str, int]
    annotate: tuple[Annotate, ...]
    orders: tuple[Order, ...]
    leaving: tuple[str, ...]
    # What Deployments stay charged for that have fewer while a sick replica ends.
    reserved: Mapping[str, int]
    # What stands on Deployments about one replica more beside faulty ones (relief.py).
    relieved: Mapping[str, str] = field(default_factory=dict)

    def notes(self, name: str) -> dict[str, str]:
        """A Deployment's annotations that go with its number of replicas; empty texts for those that it has not."""
        reserved = self.reserved.get(name, 0)
        return {ANNOTATION_RESERVED: str(reserved) if reserved else "", ANNOTATION_RELIEVED: self.relieved.get(name, "")}


def steps(observed: Observed, targets: Mapping[str, int], sick: str, turns: Mapping[str, Turn]) -> Steps:
    """What each live Deployment is asked for on its way to its target; one that does not exist yet is made with its target. `sick`: the
    replica that makes way for another before there is room for one; `turns`: who goes first, who last."""
    live = [child for child in observed.of(DEPLOYMENTS) if child.name in targets]
    swaps = {
        child.name: swap(_crew(observed, child, targets[child.name], turns), child.reserved, sick, cramped=child.name in observed.cramped)
        for child in live
    }
    drains = {name: drained for name, (drained, _) in swaps.items()}
    reserved = {name: kept for name, (_, kept) in swaps.items() if kept}
    return Steps(
        replicas={**targets, **{name: one.replicas for name, one in drains.items()}},
        annotate=tuple(write for one in drains.values() for write in one.annotate),
        orders=tuple(order for one in drains.values() for order in one.orders),
        leaving=tuple(name for one in drains.values() for name in one.leaving),
        reserved=reserved,
    )


def pods_of(observed: Observed, deployment: Child) -> tuple[Pod, ...]:
    """Its pods, those on their way out too."""
    labels: Mapping[str, str] = deployment.body["spec"]["template"]["metadata"]["labels"]
    mine = (labels.get(LABEL_REVISION), labels.get(LABEL_ACCELERATOR))
    return tuple(pod for pod in observed.pods if (pod.revision, pod.accelerator) == mine)


def _crew(observed: Observed, deployment: Child, target: int, turns: Mapping[str, Turn]) -> Crew:
    return Crew(
        pods=pods_of(observed, deployment),
        replicas=deployment.replicas,
        target=target,
        timeout_s=_timeout(observed, deployment),
        now=observed.now,
        answers=observed.answers,
        in_flight=_in_flight(observed),
        turns=turns,
    )


def _in_flight(observed: Observed) -> dict[str, int]:
    """By pod name, of those that a gateway hears now."""
    endpoints = observed.signals.endpoints if observed.signals is not None else {}
    return {name: signal.in_flight for name, signal in endpoints.items() if signal.verdict is Seen.FRESH}


def _timeout(observed: Observed, deployment: Child) -> float:
    """As long as the pods' own daemons and their grace period were told."""
    kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
    config = kept.body["data"]["daemonConfig"] if kept else {}
    return parse_duration(config.get("drainTimeout", _DEFAULT_TIMEOUT))
