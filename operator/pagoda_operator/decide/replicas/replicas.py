"""From how many replicas each Deployment should have to what each is asked for now, by way of drains. Pure; called by `plan`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import ANNOTATION_WITH_SUCCESSOR, LABEL_ACCELERATOR, LABEL_REVISION
from pagoda_contracts.units import parse_duration

from pagoda_operator.api.pods import Order, Pod
from pagoda_operator.api.signals import Seen
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.render.writes import Annotate
from pagoda_operator.decide.replicas.drain import Crew, Turn, drain

_DEFAULT_TIMEOUT: str = DaemonConfig.model_fields["drain_timeout"].default


@dataclass(frozen=True)
class Steps:
    """The next steps of all Deployments: replicas to ask for by name, annotations, orders, and who is on the way out."""

    replicas: Mapping[str, int]
    annotate: tuple[Annotate, ...]
    orders: tuple[Order, ...]
    leaving: tuple[str, ...]
    # Deployments of which one replica is the successor of an unhealthy one (successor.py).
    with_successor: frozenset[str]

    def notes(self, name: str) -> dict[str, str]:
        """A Deployment's annotation that goes with its number of replicas; an empty text if it has none."""
        return {ANNOTATION_WITH_SUCCESSOR: str(self.replicas[name]) if name in self.with_successor else ""}


def steps(observed: Observed, targets: Mapping[str, int], succeeded: Mapping[str, int], turns: Mapping[str, Turn]) -> Steps:
    """What each live Deployment is asked for on its way to its target; one that does not exist yet is made with its target. `succeeded`:
    the targets with a successor of an unhealthy replica; `turns`: who goes first, who last."""
    live = [child for child in observed.of(DEPLOYMENTS) if child.name in targets]
    drains = {child.name: drain(_crew(observed, child, succeeded[child.name], turns)) for child in live}
    replicas = {**succeeded, **{name: one.replicas for name, one in drains.items()}}
    extra = frozenset(child.name for child in live if _has_extra(child, targets[child.name], succeeded[child.name], replicas[child.name]))
    return Steps(
        replicas=replicas,
        annotate=(*(write for one in drains.values() for write in one.annotate), *_stale(live, replicas, extra)),
        orders=tuple(order for one in drains.values() for order in one.orders),
        leaving=tuple(name for one in drains.values() for name in one.leaving),
        with_successor=extra,
    )


def _has_extra(live: Child, target: int, succeeded: int, now: int) -> bool:
    """Whether the number that is asked for now has a successor in it: until the drain of the unhealthy replica, or of it, is over."""
    return now > target and (succeeded > target or (live.extra > 0 and now == live.replicas))


def _stale(live: list[Child], replicas: Mapping[str, int], extra: frozenset[str]) -> Iterator[Annotate]:
    """The annotation goes in the write that changes the number of replicas, or here if nothing else is written of the Deployment."""
    for child in live:
        written = ANNOTATION_WITH_SUCCESSOR in child.meta.get("annotations", {})
        if written and child.name not in extra and replicas[child.name] == child.replicas:
            yield Annotate(child, {ANNOTATION_WITH_SUCCESSOR: None})


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
