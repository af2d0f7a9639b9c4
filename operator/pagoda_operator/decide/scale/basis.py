"""basis: what scaling takes from what was observed, and the manifest of the page for what it learned. Pure; called by `scaler`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pagoda_contracts.names import HISTORY_KEY, HISTORY_SUFFIX
from pagoda_contracts.resources.scaling import ScalingSpec

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, SERVICES, Observed
from pagoda_operator.decide.render.children import Manifest, Owner
from pagoda_operator.decide.scale.learned import Learned, started
from pagoda_operator.decide.scale.scaling import Basis, Memory


def basis_of(observed: Observed, memory: Memory | None) -> Basis:
    """Of a service whose spec can be read."""
    if observed.spec is None:
        raise ValueError("a service without a spec is not scaled")
    spec = observed.spec.scaling or ScalingSpec()
    pods = [pod for pod in observed.pods if pod.counts]
    learned = memory.learned if memory else Learned()
    return Basis(
        spec=spec,
        replicas=observed.spec.replicas,
        current=_until_now(observed, spec.mode, memory),
        ready=sum(pod.ready for pod in pods),
        starting=tuple(pod.created or observed.now for pod in pods if not pod.ready),
        serving=tuple(pod.name for pod in pods if pod.ready),
        rows=observed.spec.engine.max_concurrency,
        accelerator=_accelerator(pods, learned),
        granted=observed.granted,
        placeable=observed.placeable,
    )


def _until_now(observed: Observed, mode: str, memory: Memory | None) -> int:
    """What was wanted: as this process decided or a predecessor told; else what the Deployments have; else where the spec lets it begin."""
    told = observed.status.scaling
    if mode == "Auto" and memory is not None:
        return memory.wanted
    if mode == "Auto" and told is not None and told.desired is not None:
        return told.desired
    there = [child.ordered for child in observed.of(DEPLOYMENTS) if not child.deleting]
    return max(there, default=observed.spec.replicas if observed.spec else 0)


def _accelerator(pods: Iterable[Pod], learned: Learned) -> str:
    """Where most replicas run; without any, where the last one started."""
    counted = Counter(pod.accelerator for pod in pods).most_common(1)
    return counted[0][0] if counted else next(reversed(list(learned.starts)), "")


def lessons(learned: Learned, pods: Iterable[Pod], starting: frozenset[str]) -> Learned:
    """How long those took that were seen starting and serve now. Who was ready when first seen may have been unready in between."""
    for pod in pods:
        since = pod.ready_since or 0.0
        if pod.ready and pod.name in starting and pod.restarts == 0 and since > pod.created > 0:
            learned = started(learned, pod.accelerator, since - pod.created)
    return learned


def page_name(observed: Observed) -> str:
    """The ConfigMap's name."""
    return f"{observed.meta.name}{HISTORY_SUFFIX}"


def page_manifest(owner: Owner, page: str) -> Manifest:
    """Without the label that makes an object a child of the plan: garbage collection takes it with the service, no rollout looks at it."""
    reference = {"apiVersion": SERVICES.api_version, "kind": SERVICES.kind, "name": owner.name, "uid": owner.uid, "controller": True}
    labels = {name: value for name, value in owner.labels.items() if name not in owner.selector}
    meta = {"name": f"{owner.name}{HISTORY_SUFFIX}", "namespace": owner.namespace, "labels": labels}
    body = {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "data": {HISTORY_KEY: page}}
    return body | {"metadata": meta | {"ownerReferences": [reference | {"blockOwnerDeletion": True}]}}
