"""A trial of a new revision's image and model, before Replace takes the last old replica away: what it has shown, and its pod. Pure.

The pod is the memory: it stays until the old replica is gone, so that a restarted operator reads what the one before knew. What it finds
wrong is judged as with a replica (sides.py). Asked by `plan`, decided by in `rollout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pagoda_contracts.names import ANNOTATION_ONLY_RUNS, COMPONENT_TRIAL, LABEL_COMPONENT

from pagoda_operator.api.pods import Pod, fetch_message, parse_pod
from pagoda_operator.api.state import DEPLOYMENTS, PODS, Observed
from pagoda_operator.decide.render.children import Manifest, Owner, Revision
from pagoda_operator.decide.render.trial_pod import trial_pod
from pagoda_operator.decide.render.writes import Create, Delete, Write
from pagoda_operator.decide.replicas.sides import broken, patience
from pagoda_operator.decide.replicas.stages import STAGES

# It asks for almost nothing: where it has no node after this, or may not be made, it shows nothing, and the rollout goes on without.
PATIENCE_S: Final = 120.0
# As long as an image may be on its way to a replica (children.py).
_DAY_S: Final = 86_400.0
# The runtime found no such program, or may not run it.
_NOT_RUN: Final = (126, 127, 128)
# Killed, for memory most likely, of which a trial has less than a replica.
_KILLED: Final = 137
# What a registry says of an image that it will not give; anything else may pass, and the old replica serves meanwhile.
_CERTAIN: Final = ("not found", "manifest unknown", "denied", "unauthorized", "no match")
_PASSING_S: Final = 600.0


class Trial(NamedTuple):
    """`there`: its pod is; `placed`: on a node, where it will come to an end; `failed`: why the revision cannot come up; `progress`: how
    far it is, in a sentence; `again`: in how many seconds that may be otherwise though no event comes."""

    there: bool = False
    placed: bool = False
    passed: bool = False
    failed: str = ""
    progress: str = ""
    again: float | None = None


def attempt(observed: Observed, owner: Owner, current: Revision, data: Manifest) -> Manifest | None:
    """The pod that would try the revision as it is pinned; None where there is no other."""
    if all(child.name == current.name for child in observed.of(DEPLOYMENTS)):
        return None
    uri = observed.spec.model.uri if observed.spec else ""
    mine = (current.hash, current.accelerator)
    olds = [pod for pod in observed.pods if pod.counts and pod.node and (pod.revision, pod.accelerator) != mine]
    nodes = [pod.node for pod in sorted(olds, key=lambda pod: (not pod.serves, pod.name))]
    return trial_pod(owner, current.name, data, uri, nodes[0] if nodes else "")


def look(observed: Observed, wanted: Manifest | None) -> Trial:
    """What its pod shows."""
    live = observed.find(PODS, wanted["metadata"]["name"]) if wanted is not None else None
    if wanted is None or live is None or live.deleting:
        return Trial(there=live is not None, progress="the trial pod is being created")
    pod = parse_pod(live.body)
    if _passed(pod, wanted):
        return Trial(there=True, placed=True, passed=True)
    placed = pod.assigned and not pod.finished and not _tells_nothing(observed, pod)  # one that was evicted comes to no end of its own
    late = f"{pod.name} has not finished within a day" if observed.now - pod.created > _DAY_S else ""
    failed = (_broken(observed, pod) or late) if placed else ""
    waits = (patience(observed, pod), left if (left := pod.created + _PASSING_S - observed.now) > 0 else None)
    return Trial(
        True, placed, failed=failed, progress=_progress(pod), again=min((wait for wait in waits if wait is not None), default=None)
    )


def _broken(observed: Observed, pod: Pod) -> str:
    """As of a replica, but that a registry which only stumbles is given ten minutes."""
    said = pod.waiting_message.lower()
    passing = pod.waiting == "ImagePullBackOff" and not any(word in said for word in _CERTAIN)
    return "" if passing and observed.now - pod.created < _PASSING_S else broken(observed, pod)


def _tells_nothing(observed: Observed, pod: Pod) -> bool:
    """What ended it is no word on the revision: it had too little memory, or nobody answers who is asked for a model that may be cached."""
    cached = observed.spec is not None and observed.spec.model.cache is not None
    unanswered = pod.fetching.exit_code not in (None, 0) and not pod.fetching.permanent
    late = observed.now - pod.created >= _PASSING_S
    return _KILLED in (pod.exit_code, pod.fetching.exit_code) or (cached and unanswered and late)


def _passed(pod: Pod, wanted: Manifest) -> bool:
    """A command of the profile's own may take no `--version`, and what init containers of its own bring is not there: that its image is
    there and runs is all that can be known."""
    if ANNOTATION_ONLY_RUNS in wanted["metadata"]["annotations"] and (pod.running or pod.exit_code not in (None, *_NOT_RUN)):
        return True
    return pod.exit_code == 0


def _progress(pod: Pod) -> str:
    """Without words of the moment: each change would be a write."""
    if pod.finished:
        return f"trial pod {pod.name} was evicted before it finished"
    if pod.fetching.exit_code:
        return fetch_message(pod.name, pod.fetching)
    troubles = (found[1] for found in (stage(pod) for stage in STAGES[:4]) if found is not None)
    quiet = "pulls its image and reads the model's config.json" if pod.assigned else "has no node yet"
    return next(troubles, f"{pod.name} {quiet}")


def steps(observed: Observed, wanted: Manifest | None) -> Iterator[Write]:
    """The next write: one is made, and others go; all where none is wanted."""
    keep = wanted["metadata"]["name"] if wanted is not None else ""
    for pod in observed.of(PODS):
        if pod.meta["labels"].get(LABEL_COMPONENT) == COMPONENT_TRIAL and pod.name != keep and not pod.deleting:
            yield Delete(PODS, pod)
    if wanted is not None and observed.find(PODS, keep) is None:
        yield Create(PODS, wanted)
