"""Services that are made valid, invalid, valid again and deleted, many at a time, against a real API server and a running operator."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pagoda_contracts.names import ANNOTATION_RENDERED, LABEL_SERVICE
from pagoda_devcluster.client.audit import received
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, SERVICES
from support.kube.client import Body, eventually
from support.kube.fake_api import is_ready, running, service_body
from support.kube.namespace import Real
from support.kube.operator_process import NODE, USER, OperatorProcess
from support.kube.schema_objects import Edit, Spec, edited

# Conditions that speak of the object itself; others (a rejected model) come from what its pods do.
OWN_FAULTS = {"InvalidSpec", "InvalidProfile", "ProfileNotFound", "PodTemplateForbidden", "NoAccelerator"}
# On an invalid object: what was under way when it came, and the verdict.
STATUS_WRITES = 2


@dataclass
class Transitions:
    """`slots` services in one namespace."""

    real: Real
    operator: OperatorProcess
    slots: int
    profile: str
    counts: Counter[str] = field(default_factory=Counter)
    # Of each invalid object: seconds from when the API server heard the user until its answer to the operator's last word on it.
    waits: list[float] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [f"bad{number}" for number in range(self.slots)]

    @property
    def good(self) -> Spec:
        base: Spec = service_body("x", self.real.namespace)["spec"]
        return base | {"model": {"uri": "pvc://models"}, "profileRef": {"name": self.profile}}

    def start(self) -> None:
        """All of them there, valid and serving."""
        for name in self.names:
            body = service_body(name, self.real.namespace) | {"spec": self.good}
            if self.real.kube.get(SERVICES, self.real.namespace, name) is None:
                self.real.kube.create(SERVICES, self.real.namespace, body)
        self.settle()

    def round(self, batch: list[tuple[list[Edit], bool]]) -> None:
        """Every service gets its edits, is judged, and becomes valid again, or is deleted and made anew."""
        since, drawn = time.time(), dict(zip(self.names, batch, strict=True))
        taken = [name for name, (edits, _) in drawn.items() if self.put(name, edited(self.good, edits))]
        self.counts["refused by the API server"] += len(drawn) - len(taken)
        for name in taken:
            eventually(lambda name=name: self.tend() or self.judged(name), f"a verdict on {self.service(name)['spec']}")
        self.check_untouched([name for name in taken if self.stalled(name)], since)
        for name, (_, deleted) in drawn.items():
            if deleted:
                self.counts["deleted"] += 1
                self.real.kube.delete(SERVICES, self.real.namespace, name)
            else:
                assert self.put(name, self.good)
        self.counts["made valid"] += self.slots
        self.start()

    def put(self, name: str, spec: Spec) -> bool:
        """Replaces the spec; whether the API server took it."""
        path = [{"op": "replace", "path": "/spec", "value": spec}]
        return self.real.kube.json_patch(SERVICES, self.real.namespace, name, path)

    def check_untouched(self, stalled: list[str], since: float) -> None:
        """Of a service that the operator finds invalid no child was written to, and its status STATUS_WRITES times at most."""
        self.counts["refused by the operator"] += len(stalled)
        (events,) = eventually(lambda: self.logged(stalled, since), "every verdict in the audit log")
        self.waits += [self.verdict(name, events) for name in stalled]
        for event in events:
            about = event["objectRef"]
            if event["user"]["username"] != USER:
                continue
            mine = about.get("namespace") == self.real.namespace and about["resource"] not in (SERVICES.plural, "events")
            if mine and any(about.get("name", "").partition("-")[0] == name for name in stalled):
                raise AssertionError(
                    f"{event['verb']} {about['resource']} {about['name']}: {self.service(about['name'].partition('-')[0])}"
                )

    def logged(self, stalled: list[str], since: float) -> list[list[Body]]:
        """All writes, once those that the verdicts are told by are among them."""
        events = [event for event in self.real.cluster.audit(since=since) if event.get("objectRef")]
        return [events] if all(self.reported(name, events)[1] for name in stalled) else []

    def reported(self, name: str, events: list[Body]) -> tuple[Body, list[Body]]:
        """The user's last change of a service, and what the operator wrote to the service after it."""
        mine = [event for event in events if (event["objectRef"]["resource"], event["objectRef"].get("name")) == (SERVICES.plural, name)]
        (asked,) = [event for event in mine if event["user"]["username"] != USER and event["responseStatus"]["code"] == 200]
        return asked, [event for event in mine if event["user"]["username"] == USER and answered(event) > received(asked)]

    def verdict(self, name: str, events: list[Body]) -> float:
        """How long the operator took with the user's last change, by the API server's own times."""
        asked, reported = self.reported(name, events)
        assert 1 <= len(reported) <= STATUS_WRITES, [event["requestURI"] for event in reported]
        return (answered(reported[-1]) - received(asked)).total_seconds()

    def clear(self) -> None:
        """All of them deleted, and nothing of theirs left."""
        for name in self.names:
            self.real.kube.delete(SERVICES, self.real.namespace, name)
        eventually(lambda: self.tend() or (not self.real.pods() and not self.real.children()), "nothing is left of them")

    def settle(self) -> None:
        """Until all serve as their specs say, and nothing else is left."""
        try:
            eventually(lambda: self.tend() or all(map(self.arrived, self.names)), "all are valid and serve")
        except AssertionError as error:
            late = [self.service(name) for name in self.names if not self.arrived(name)]
            raise AssertionError(f"{error}; not so: {[(body['spec'], body.get('status')) for body in late]}") from error
        assert self.operator.process.poll() is None, "the operator is gone"
        assert self.operator.events("reconcile_bug") == []

    def tend(self) -> None:
        """What a kubelet would do: everything comes up, what is deleted ends."""
        self.real.end_pods()
        for pod in self.real.pods():
            if pod["spec"].get("nodeName") == NODE and "deletionTimestamp" not in pod["metadata"] and not is_ready(pod):
                self.real.node.report(pod, running(ready=True))

    def service(self, name: str) -> Body:
        return self.real.kube.get(SERVICES, self.real.namespace, name) or {}

    def lines(self, name: str) -> dict[str, Body]:
        """The conditions, of the newest generation."""
        body = self.service(name)
        status: dict[str, Any] = body.get("status", {})
        fresh = bool(body) and status.get("observedGeneration") == body["metadata"]["generation"]
        return {line["type"]: line for line in status.get("conditions", [])} if fresh else {}

    def judged(self, name: str) -> bool:
        return bool(self.lines(name))

    def stalled(self, name: str) -> bool:
        line = self.lines(name)["Stalled"]
        return line["status"] == "True" and line["reason"] in OWN_FAULTS

    def arrived(self, name: str) -> bool:
        lines = self.lines(name)
        settled = bool(lines) and (lines["Ready"]["status"], lines["Reconciling"]["status"]) == ("True", "False")
        return settled and len(self.real.kube.list(PODS, self.real.namespace, f"{LABEL_SERVICE}={name}")) == 1

    def final(self, name: str) -> dict[str, Any]:
        """All that was made of a service, without what only tells when and where."""
        uid = self.service(name)["metadata"]["uid"]
        children = {}
        for resource in CHILD_RESOURCES:
            for body in self.real.kube.list(resource, self.real.namespace, f"{LABEL_SERVICE}={name}"):
                children[f"{resource.kind} {body['metadata']['name']}"] = _essence(body, uid, self.real.namespace)
        status = {key: value for key, value in self.service(name)["status"].items() if key in ("replicas", "readyReplicas", "placement")}
        return children | {"status": status, "reason": self.lines(name)["Ready"]["reason"]}


def answered(event: Body) -> datetime:
    return datetime.fromisoformat(event["stageTimestamp"])


def _essence(body: Body, uid: str, namespace: str) -> Any:
    """Content, labels and owners; the number of a revision counts those before it."""
    meta = {part: body["metadata"].get(part) for part in ("labels", "ownerReferences", "finalizers")}
    spec = {key: value for key, value in body.get("spec", {}).items() if key not in ("clusterIP", "clusterIPs")}
    text = json.dumps({"meta": meta, "spec": spec, "data": body.get("data")}, sort_keys=True)
    assert ANNOTATION_RENDERED in body["metadata"]["annotations"]
    return json.loads(text.replace(uid, "UID").replace(namespace, "NAMESPACE"))
