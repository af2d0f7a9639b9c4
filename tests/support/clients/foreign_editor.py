"""Somebody who edits, relabels, disowns and deletes what the operator made, drawn by a seed. For the fault tests.

A ControllerRevision is only deleted: the API server lets nobody change one for certain; nor a ConfigMap's data, which
are immutable. An owner and a label are not both taken away: what has neither is nobody's, and the operator says that it is in the way.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from pagoda_contracts.names import LABEL_ACCELERATOR, LABEL_REVISION, LABEL_SERVICE, LABEL_SERVICE_UID
from pagoda_operator.api.state import (
    CONFIG_MAPS,
    CONTROLLER_REVISIONS,
    CORE_SERVICES,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    PODS,
    Resource,
)
from support.kube.client import Body
from support.kube.namespace import Real

_LABELS = (LABEL_SERVICE, LABEL_SERVICE_UID, LABEL_REVISION, LABEL_ACCELERATOR)
_EDITED = (CONFIG_MAPS, DEPLOYMENTS, CORE_SERVICES, DISRUPTION_BUDGETS)
_FOREIGN = "localhost/miner:1"


class ForeignEditor:
    """One edit at a time, each of one child; what the API server refuses counts too, as an attempt."""

    def __init__(self, real: Real, seed: int) -> None:
        self._real, self._rng = real, random.Random(seed)
        self.done: Counter[str] = Counter()
        self._edits: dict[str, Callable[[], str]] = {
            "scale": self._scale,
            "image": self._image,
            "addition": self._add,
            "relabel": self._relabel,
            "disown": self._disown,
            "delete": self._delete,
            "selector": self._selector,
            "budget": self._budget,
            "kill": self._kill,
        }

    def edit(self) -> str:
        """What was done, in words."""
        name = self._rng.choice(list(self._edits))
        try:
            reported = f"{name} {self._edits[name]()}"
        except AssertionError as error:  # conflict, gone meanwhile, or not valid
            reported = f"{name} refused: {str(error)[:80]}"
        self.done[reported.split()[0] if "refused" not in reported else "refused"] += 1
        return reported

    def _scale(self) -> str:
        return self._merged(DEPLOYMENTS, {"spec": {"replicas": self._rng.randrange(4)}})

    def _image(self) -> str:
        deployment = self._drawn(DEPLOYMENTS)
        containers = [container | {"image": _FOREIGN} for container in deployment["spec"]["template"]["spec"]["containers"]]
        return self._merge(DEPLOYMENTS, deployment, {"spec": {"template": {"spec": {"containers": containers}}}})

    def _add(self) -> str:
        """A sidecar, the host's network, an account, or the host's disk in place of an empty folder."""
        deployment = self._drawn(DEPLOYMENTS)
        pod = "/spec/template/spec"
        run = [volume["name"] for volume in deployment["spec"]["template"]["spec"]["volumes"]].index("run")
        change = self._rng.choice(
            [
                {"op": "add", "path": f"{pod}/containers/-", "value": {"name": "miner", "image": _FOREIGN}},
                {"op": "add", "path": f"{pod}/hostNetwork", "value": True},
                {"op": "add", "path": f"{pod}/serviceAccountName", "value": "admin"},
                {"op": "replace", "path": f"{pod}/volumes/{run}", "value": {"name": "run", "hostPath": {"path": "/"}}},
            ]
        )
        name = deployment["metadata"]["name"]
        assert self._real.kube.json_patch(DEPLOYMENTS, self._real.namespace, name, [change]), "not valid"
        return f"Deployment {name}: {change}"

    def _relabel(self) -> str:
        """Takes one of our labels off, or writes nonsense on it; one more label of anybody's would be nobody's business."""
        resource = self._rng.choice(_EDITED)
        body = self._drawn(resource, lambda body: "ownerReferences" in body["metadata"] and _labels(body).keys() & {*_LABELS})
        label = self._rng.choice([name for name in _LABELS if name in body["metadata"]["labels"]])
        return self._merge(resource, body, {"metadata": {"labels": {label: self._rng.choice([None, "nonsense"])}}})

    def _disown(self) -> str:
        resource = self._rng.choice(_EDITED)
        body = self._drawn(resource, _labelled)
        return self._merge(resource, body, {"metadata": {"ownerReferences": None}})

    def _delete(self) -> str:
        resource = self._rng.choice((*_EDITED, CONTROLLER_REVISIONS))
        name = self._drawn(resource)["metadata"]["name"]
        self._real.kube.delete(resource, self._real.namespace, name)
        return f"{resource.kind} {name}"

    def _selector(self) -> str:
        return self._merged(CORE_SERVICES, {"spec": {"selector": {LABEL_SERVICE: "elsewhere"}}})

    def _budget(self) -> str:
        return self._merged(DISRUPTION_BUDGETS, {"spec": {"maxUnavailable": self._rng.choice([0, 5])}})

    def _kill(self) -> str:
        pods = self._real.pods()
        assert pods, "no pod"
        name = self._rng.choice(sorted(pod["metadata"]["name"] for pod in pods))
        self._real.kube.delete(PODS, self._real.namespace, name)
        return f"Pod {name}"

    def _merged(self, resource: Resource, patch: Body) -> str:
        return self._merge(resource, self._drawn(resource), patch)

    def _merge(self, resource: Resource, body: Body, patch: Body) -> str:
        version = {"metadata": {"resourceVersion": body["metadata"]["resourceVersion"]} | patch.get("metadata", {})}
        self._real.kube.merge(resource, self._real.namespace, body["metadata"]["name"], patch | version)
        return f"{resource.kind} {body['metadata']['name']}: {patch}"

    def _drawn(self, resource: Resource, fits: Callable[[Body], bool] = lambda _: True) -> Body:
        """A child; never the API server's own ConfigMap."""
        found = [body for body in self._real.kube.list(resource, self._real.namespace) if _made(body) and fits(body)]
        assert found, f"no {resource.kind}"
        return self._rng.choice(sorted(found, key=lambda body: str(body["metadata"]["name"])))


def _made(body: Body) -> bool:
    return "ownerReferences" in body["metadata"] or _labelled(body)


def _labelled(body: Body) -> bool:
    return _labels(body).get(LABEL_SERVICE_UID, "nonsense") != "nonsense"


def _labels(body: Body) -> Body:
    return body["metadata"].get("labels") or {}
