"""A trial of a new revision's image and model, before Replace takes the last old replica away: what it has shown, and its pod. Pure.

The pod is the memory: it stays until the old replica is gone, so that a restarted operator reads what the one before knew. A failure is
judged as a replica's is (replica.py). Called by `plan`; the decision is made in `rollout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pagoda_contracts.names import ANNOTATION_ONLY_RUNS, COMPONENT_TRIAL, LABEL_COMPONENT
from pagoda_placement.revision import Revision

from pagoda_operator.api.pods import Pod, parse_pod
from pagoda_operator.api.state import DEPLOYMENTS, PODS, Observed
from pagoda_operator.decide.render.children import Manifest, Owner
from pagoda_operator.decide.render.trial_pod import trial_pod
from pagoda_operator.decide.render.writes import Create, Delete, Write
from pagoda_operator.decide.replicas.replica import broken, fetch_message, missing, trouble

# It asks for almost nothing. If it has no node after this time, or may not be made, it shows nothing, and the rollout goes on without it.
PATIENCE_S: Final = 120.0
# As long as an image may be on its way to a replica (render/children.py).
DAY_S: Final = 86_400.0
# The runtime found no such program, or may not run it.
_NOT_RUN: Final = (126, 127, 128)
# Killed, most likely for memory, of which a trial has less than a replica.
_KILLED: Final = 137
# What a registry answers about an image that it will not give. Any other error may pass, and the old replica serves meanwhile.
_CERTAIN: Final = ("not found", "manifest unknown", "denied", "unauthorized", "no match")
_PASSING_S: Final = 600.0


class Trial(NamedTuple):
    """`there`: its pod exists; `placed`: the pod has a node, where it will end; `failed`: why the revision cannot start; `progress`: how
    far the pod is, in a sentence; `again`: seconds until something may differ although no event comes; `created`: when the pod was made, in
    Unix seconds."""

    there: bool = False
    placed: bool = False
    passed: bool = False
    failed: str = ""
    progress: str = ""
    again: float | None = None
    created: float = 0.0


def attempt(observed: Observed, owner: Owner, current: Revision, data: Manifest) -> Manifest | None:
    """The pod that would try the revision as it is pinned; None if there is no other revision."""
    if all(child.name == current.name for child in observed.of(DEPLOYMENTS)):
        return None
    uri = observed.spec.model.uri if observed.spec else ""
    mine = (current.hash, current.accelerator)
    olds = [pod for pod in observed.pods if pod.counts and pod.node and (pod.revision, pod.accelerator) != mine]
    node = min(olds, key=lambda pod: (not pod.serves, pod.name)).node if olds else ""
    return trial_pod(owner, current.name, data, uri, node)


def result(observed: Observed, wanted: Manifest | None) -> Trial:
    """What the trial has shown."""
    live = observed.find(PODS, wanted["metadata"]["name"]) if wanted is not None else None
    if wanted is None or live is None or live.deleting:
        return Trial(there=live is not None, progress="the trial pod is being created")
    pod = parse_pod(live.body)
    if _passed(pod, wanted):
        return Trial(there=True, placed=True, passed=True)
    placed = pod.assigned and not pod.finished and not _inconclusive(observed, pod)  # an evicted one comes to no end of its own
    late = f"{pod.name} has not finished within a day" if observed.now - pod.created > DAY_S else ""
    failed = (_broken(observed, pod) or late) if placed else ""
    waits = (pod.created + _PASSING_S - observed.now, *(lack.until - observed.now for lack in missing(observed, pod)))
    again = min((wait for wait in waits if wait > 0), default=None)
    return Trial(True, placed, failed=failed, progress=_progress(observed, pod), again=again, created=pod.created)


def _broken(observed: Observed, pod: Pod) -> str:
    """As for a replica, but an error of the registry that may pass has ten minutes."""
    said = pod.waiting_message.lower()
    passing = pod.waiting == "ImagePullBackOff" and not any(word in said for word in _CERTAIN)
    return "" if passing and observed.now - pod.created < _PASSING_S else broken(observed, pod)


def _inconclusive(observed: Observed, pod: Pod) -> bool:
    """Whether its end says nothing about the revision: it had too little memory, or a source whose model may be cached did not answer."""
    cached = observed.spec is not None and observed.spec.model.cache is not None
    unanswered = pod.fetching.exit_code not in (None, 0) and not pod.fetching.permanent
    late = observed.now - pod.created >= _PASSING_S
    return _KILLED in (pod.exit_code, pod.fetching.exit_code) or (cached and unanswered and late)


def _passed(pod: Pod, wanted: Manifest) -> bool:
    """A profile's own command may not take `--version`, and lacks here what its own init containers bring. So it is enough that it runs."""
    if ANNOTATION_ONLY_RUNS in wanted["metadata"]["annotations"] and (pod.running or pod.exit_code not in (None, *_NOT_RUN)):
        return True
    return pod.exit_code == 0


def _progress(observed: Observed, pod: Pod) -> str:
    """Without anything that changes by itself: each change would be a write."""
    if pod.finished:
        return f"trial pod {pod.name} was evicted before it finished"
    if pod.fetching.exit_code:
        return fetch_message(pod)
    if (failed := trouble(observed, pod)) is not None:
        return failed.message
    quiet = "pulls its image and reads the model's config.json" if pod.assigned else "has no node yet"
    return f"{pod.name} {quiet}"


def steps(observed: Observed, wanted: Manifest | None) -> Iterator[Write]:
    """The next writes: the wanted trial's pod is made, and all others go."""
    keep = wanted["metadata"]["name"] if wanted is not None else ""
    for pod in observed.of(PODS):
        if pod.meta["labels"].get(LABEL_COMPONENT) == COMPONENT_TRIAL and pod.name != keep and not pod.deleting:
            yield Delete(PODS, pod)
    if wanted is not None and observed.find(PODS, keep) is None:
        yield Create(PODS, wanted)
