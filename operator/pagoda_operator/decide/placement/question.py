"""What a placement is decided from, and how it is read from one service's observation. Pure; called by `plan` and `place`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pagoda_contracts.names import ANNOTATION_DEVICES, ANNOTATION_PLACEMENT, DAEMON_CUDA, LABEL_ACCELERATOR
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.resources.status import PlacementStatus
from pagoda_sizing.model import Model

from pagoda_operator.api.placement import Held, Pin, Resolved, read_pin
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, Child, Observed
from pagoda_operator.decide.placement.inspection import inspect
from pagoda_operator.decide.render.pod import scheduling
from pagoda_operator.decide.replicas.replicas import pods_of
from pagoda_operator.inventory.fit import Size
from pagoda_operator.inventory.fleet import Fleet, Terms


class Run(NamedTuple):
    """One revision that has a Deployment, or is pinned and waits for one: what it was placed on, where that is known, and whether a pod of
    it has a node; `refused`: what the scheduler says of one for which it found none."""

    name: str
    number: int
    pin: Pin | None
    running: bool
    accelerator: str = ""
    refused: str = ""


class Question(NamedTuple):
    """All that a placement is decided from."""

    name: str
    spec: InferenceServiceSpec
    fleet: Fleet = Fleet()
    terms: Terms = Terms()
    shape: Model | None = None
    # Without a shape: what is being done about it, or why there will be none.
    unknown: Held | None = None
    unknowable: str = ""
    runs: tuple[Run, ...] = ()
    kept: PlacementStatus | None = None
    wanted: int = 1
    now: float = 0.0
    # The largest nodes there are, for reasons.
    sizes: tuple[Size, ...] = ()


class Current(NamedTuple):
    """Where the spec's revision was placed: which entry, on what, and what its Run says."""

    position: int
    resolved: Resolved
    running: bool
    refused: str


def ask(observed: Observed, spec: InferenceServiceSpec) -> Question:
    """The question, complete."""
    known = inspect(observed, spec)
    return Question(
        name=observed.meta.name,
        spec=spec,
        fleet=observed.fleet,
        terms=terms(observed, spec),
        shape=known.shape,
        unknown=known.unknown,
        unknowable=known.unknowable,
        runs=tuple(_runs(observed, spec)),
        kept=observed.status.placement,
        wanted=observed.wanted,
        now=observed.now,
        sizes=observed.sizes,
    )


def terms(observed: Observed, spec: InferenceServiceSpec) -> Terms:
    """What the service's pods bring along."""
    profile = observed.profile
    if profile is None:
        return Terms(service_uid=observed.meta.uid)
    said = scheduling(profile, spec)
    return Terms(
        selector=said.get("nodeSelector") or {},
        tolerations=tuple(said.get("tolerations") or ()),
        cuda=profile.min_cuda or DAEMON_CUDA,
        service_uid=observed.meta.uid,
    )


def _runs(observed: Observed, spec: InferenceServiceSpec) -> Iterator[Run]:
    """Revisions that have a Deployment, and those that wait for one."""
    for deployment in observed.of(DEPLOYMENTS):
        if deployment.deleting:
            continue
        kept = observed.find(CONTROLLER_REVISIONS, deployment.name)
        labels = deployment.body["spec"]["template"]["metadata"]["labels"]
        yield Run(
            name=deployment.name,
            number=int(kept.body["revision"]) if kept else 0,
            pin=_pin(observed, deployment.name),
            running=any(pod.counts and pod.scheduled for pod in pods_of(observed, deployment)),
            accelerator=labels.get(LABEL_ACCELERATOR, ""),
            refused=_refused(observed, spec, deployment),
        )
    yield from _to_come(observed)


def _to_come(observed: Observed) -> Iterator[Run]:
    """Revisions that a rollout gives no replica yet, hence no Deployment: decided on all the same. Left out, the next run would
    be back at the entry that was given up, and wait for it anew."""
    made = {child.name for child in observed.of(DEPLOYMENTS)}
    for kept in observed.of(CONTROLLER_REVISIONS):
        pin = _pin(observed, kept.name)
        if pin is not None and kept.name not in made and not kept.deleting:
            yield Run(kept.name, int(kept.body["revision"]), pin, running=False)


def _pin(observed: Observed, name: str) -> Pin | None:
    """What a revision was placed on; None where nothing was chosen."""
    config = observed.find(CONFIG_MAPS, name)
    written = config.meta.get("annotations", {}).get(ANNOTATION_PLACEMENT, "") if config else ""
    return read_pin(written) if written else None


def _refused(observed: Observed, spec: InferenceServiceSpec, deployment: Child) -> str:
    """What the scheduler says of one for which it found no node. While another of the same Deployment drains, a lack of room is no word
    on the entry: the successor waits for what its predecessor holds, which counts as free to it. On CPU, where nothing is counted, no more
    is it while another revision of the service holds a node."""
    annotations = deployment.body["spec"]["template"]["metadata"].get("annotations") or {}
    own = pods_of(observed, deployment)
    names = {pod.name for pod in own}
    # A replica that comes only in the place of an unhealthy one has the whole service move for it no more than a rollout judge by it.
    tried = [pod for pod in own if pod.counts and pod.unschedulable][deployment.extra :]
    others = (pod for pod in observed.pods if pod.name not in names and ANNOTATION_DEVICES not in annotations)
    occupied = any(pod.assigned and not pod.finished for pod in others)
    makes_room = any(pod.short for pod in tried) and (occupied or _makes_room(observed, spec, own))
    return next((pod.unscheduled for pod in tried if not (makes_room and pod.short)), "")


def _makes_room(observed: Observed, spec: InferenceServiceSpec, own: Iterable[Pod]) -> bool:
    """Whether one on its way out gives a successor its place. On a node that takes no pods it does not, and may end never."""
    blocks = observed.fleet.blocks(terms(observed, spec))
    return any(pod.deleting and not pod.finished and pod.assigned and blocks.get(pod.node) is None for pod in own)
