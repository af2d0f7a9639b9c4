"""What a placement is decided from, and how it is read from one service's observation. Pure; called by `plan` and `place`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pagoda_contracts.names import ANNOTATION_DEVICES, ANNOTATION_PLACEMENT, DAEMON_CUDA, LABEL_ACCELERATOR
from pagoda_contracts.resources.profile import NODE_DEADLINE, DeviceHint
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.status import PlacementStatus
from pagoda_contracts.units import parse_duration, parse_quantity
from pagoda_sizing.platforms import products

from pagoda_operator.api.placement import Pin, Resolved, read_pin
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.render.devices import tolerations
from pagoda_operator.decide.render.inspection import Inspection, inspect
from pagoda_operator.decide.render.pod import scheduling
from pagoda_operator.decide.replicas.replicas import pods_of
from pagoda_operator.inventory.fit import Size
from pagoda_operator.inventory.inventory import Inventory
from pagoda_operator.inventory.terms import Hint, Terms
from pagoda_operator.inventory.values import Json


class Run(NamedTuple):
    """A revision that has a Deployment, or is pinned and has none yet.

    `pin`: its devices, if they were chosen; `running`: whether one of its pods has a node; `refused`: why the scheduler found none.
    """

    name: str
    number: int
    pin: Pin | None
    running: bool
    accelerator: str = ""
    refused: str = ""
    # Of its template, which stays as it was pinned; None if there is none.
    tolerations: tuple[Mapping[str, Any], ...] | None = None


class Question(NamedTuple):
    """All that a placement is decided from."""

    name: str
    spec: InferenceServiceSpec
    inventory: Inventory = Inventory()
    terms: Terms = Terms()
    model: Inspection = Inspection()
    runs: tuple[Run, ...] = ()
    kept: PlacementStatus | None = None
    wanted: int = 1
    now: float = 0.0
    # Of the largest nodes, for messages.
    sizes: tuple[Size, ...] = ()
    # How long nodes that no pool has yet may take, in seconds.
    node_deadline: float = parse_duration(NODE_DEADLINE)


class Current(NamedTuple):
    """Where the spec's revision was placed: the entry's position, the devices, and fields of its Run."""

    position: int
    resolved: Resolved
    running: bool
    refused: str
    tolerations: tuple[Mapping[str, Any], ...] | None = None


def ask(observed: Observed, spec: InferenceServiceSpec) -> Question:
    """The question for a service."""
    return Question(
        name=observed.meta.name,
        spec=spec,
        inventory=observed.inventory,
        terms=terms(observed, spec),
        model=inspect(observed, spec),
        runs=tuple(_runs(observed, spec)),
        kept=observed.status.placement,
        wanted=observed.wanted,
        now=observed.now,
        sizes=observed.sizes,
        node_deadline=observed.node_deadline,
    )


def terms(observed: Observed, spec: InferenceServiceSpec) -> Terms:
    """What the service's pods require of nodes, and tolerate."""
    profile = observed.profile
    if profile is None:
        return Terms(service_uid=observed.meta.uid)
    pod = scheduling(profile, spec)
    return Terms(
        selector=pod.get("nodeSelector") or {},
        tolerations=(*(pod.get("tolerations") or ()), *tolerations()),
        cuda=profile.min_cuda or DAEMON_CUDA,
        service_uid=observed.meta.uid,
        devices=tuple(_hint(one) for one in profile.devices),
    )


def pinned(question: Question, current: Current | None) -> Question:
    """For more pods of a revision that has a template: they tolerate what it says, not what a new one would."""
    if current is None or current.tolerations is None:
        return question
    return question._replace(terms=question.terms._replace(tolerations=current.tolerations))


def _hint(device: DeviceHint) -> Hint:
    memory = int(parse_quantity(device.memory)) if device.memory else products().get(device.product)
    return Hint(tuple(sorted(device.node_labels.items())), device.product, memory)


def _runs(observed: Observed, spec: InferenceServiceSpec) -> Iterator[Run]:
    """Revisions that have a Deployment, then those that have none yet because the rollout gives them no replica. Without the latter, the
    next reconcile would wait for the first entry again."""
    deployments = observed.of(DEPLOYMENTS)
    for deployment in deployments:
        if deployment.deleting:
            continue
        kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
        template = deployment.body["spec"]["template"]
        yield Run(
            name=deployment.name,
            number=int(kept.body["revision"]) if kept else 0,
            pin=_pin(observed, deployment.name),
            running=bool(deployment.rejected) or any(pod.counts and pod.scheduled for pod in pods_of(observed, deployment)),
            accelerator=template["metadata"]["labels"].get(LABEL_ACCELERATOR, ""),
            refused=_refused(observed, spec, deployment),
            tolerations=_tolerations(template),
        )
    names = {child.name for child in deployments}
    for kept in observed.of(CONTROLLER_REVISIONS):
        pin = _pin(observed, kept.name)
        if pin is not None and kept.name not in names and not kept.deleting:
            template = kept.body["data"]["podTemplate"]
            yield Run(kept.name, int(kept.body["revision"]), pin, running=False, tolerations=_tolerations(template))


def _tolerations(template: Json) -> tuple[Mapping[str, Any], ...]:
    return tuple(template.get("spec", {}).get("tolerations") or ())


def _pin(observed: Observed, name: str) -> Pin | None:
    """A revision's devices; None if there was nothing to choose."""
    config = observed.find(CONFIG_MAPS, name)
    return read_pin(config.meta.get("annotations", {}).get(ANNOTATION_PLACEMENT, "")) if config else None


def _refused(observed: Observed, spec: InferenceServiceSpec, deployment: Child) -> str:
    """The scheduler's message for a pod without a node; empty if it does not speak against the entry.

    A lack of room does not, while a pod of the same Deployment ends: its place counts as free for the next pod. On CPU, where devices are
    not counted, it does not either, while another revision of the service has a pod on a node.
    """
    annotations = deployment.body["spec"]["template"]["metadata"].get("annotations") or {}
    own = pods_of(observed, deployment)
    names = {pod.name for pod in own}
    # Without the successor of an unhealthy replica, for which a service does not move.
    tried = [pod for pod in own if pod.counts and pod.unschedulable][deployment.extra :]
    others = (pod for pod in observed.pods if pod.name not in names and ANNOTATION_DEVICES not in annotations)
    occupied = any(pod.assigned and not pod.finished for pod in others)
    makes_room = any(pod.short for pod in tried) and (occupied or _makes_room(observed, spec, own))
    return next((pod.unscheduled for pod in tried if not (makes_room and pod.short)), "")


def _makes_room(observed: Observed, spec: InferenceServiceSpec, own: Iterable[Pod]) -> bool:
    """Whether a pod that ends gives its place to a successor. A pod on a node that takes no new pods does not, and may never end."""
    blocks = observed.inventory.blocks(terms(observed, spec))
    return any(pod.deleting and not pod.finished and pod.assigned and blocks.get(pod.node) is None for pod in own)
