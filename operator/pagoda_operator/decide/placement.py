"""The question of where a service's replicas fit, read from its observation, and what scaling asks of it. Pure; `pagoda_placement` has
the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pagoda_contracts.names import ANNOTATION_DEVICES, ANNOTATION_PLACEMENT, LABEL_ACCELERATOR
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_placement.place import more
from pagoda_placement.question import Question, Run
from pagoda_placement.result import Pin, read_pin
from pagoda_placement.terms import Terms, terms_of
from pagoda_placement.values import Json

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.render.inspection import inspect
from pagoda_operator.decide.replicas.replicas import pods_of


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
        made=frozenset(child.name for kind in (DEPLOYMENTS, CONTROLLER_REVISIONS) for child in observed.of(kind)),
    )


def terms(observed: Observed, spec: InferenceServiceSpec) -> Terms:
    """What the service's pods require of nodes, and tolerate."""
    return terms_of(observed.profile, spec, observed.meta.uid)


def placeable(observed: Observed) -> int | None:
    """How many replicas have a place or would find one now: the limit of scaling; None if that is unknown."""
    beside = more(ask(observed, observed.spec)) if observed.spec is not None else None
    return None if beside is None else beside + sum(pod.assigned for pod in observed.pods if pod.counts)


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
