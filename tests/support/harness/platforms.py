"""Clusters as platforms make them: nodes of the dev cluster's layouts, the chart's default profile, and the scheduler's answer to a pod
template."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pagoda_devcluster.gpus import layout
from pagoda_devcluster.gpus.devices import allocatable
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_operator.api.state import PROFILES
from pagoda_placement.nodes import Taint, tolerated
from support.harness.harness import Harness
from support.harness.inventories import Body, inventory
from support.harness.placing import ENGINE, inspected
from support.kube.chart import CHART
from support.kube.fake_api import copied, profile_body

LAYOUTS = Path(__file__).parents[3] / "devcluster/layouts"
# More than any replica of these tests asks for: what is judged is where it may go.
_ROOM = {"cpu": "999", "memory": "9999Gi", "pods": "110"}


@cache
def nodes(name: str, least: int = 1) -> tuple[Body, ...]:
    """One node of each class that has a weight; with `least` 0 of those of pools without nodes as well."""
    found = layout.read(LAYOUTS / f"{name}.yaml")
    return tuple(_node(one) for one in found.classes if one.weight >= least)


def _node(played: layout.NodeClass) -> Body:
    offered = allocatable(played, played.name)
    return {
        "metadata": {"name": played.name, "labels": {"kubernetes.io/hostname": played.name} | labels_of(played)},
        "spec": {"taints": [taint.model_dump() for taint in played.taints]},
        "status": {"capacity": _ROOM | offered, "allocatable": _ROOM | offered, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def default_profile(**changes: Any) -> Body:
    """The profile that the chart installs with its default values."""
    return profile_body(**(copied(_values()["defaultProfile"]) | changes))


@cache
def _values() -> Body:
    made: Body = yaml.safe_load((CHART / "values.yaml").read_text())
    return made


def first_service(name: str, *accelerators: Body, profile: Body | None = None, **spec: Any) -> Harness:
    """A service on such a cluster, whose model was inspected already, as far as it comes without a kubelet."""
    made = Harness(accelerators=list(accelerators), **({"engine": ENGINE} | spec))
    made.api.put(PROFILES, profile or default_profile())
    made.inventory = inventory(*nodes(name))
    inspected(made)
    made.settle()
    return made


def takes(template: Body, name: str) -> list[str]:
    """Nodes, of pools without nodes too, that the scheduler would give a pod: by node affinity, taints and devices."""
    return [node["metadata"]["name"] for node in nodes(name, 0) if all(_judged(template["spec"], node))]


def _judged(spec: Body, node: Body) -> Iterator[bool]:
    labels, taints = node["metadata"]["labels"], node["spec"]["taints"]
    yield all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = required["nodeSelectorTerms"] if required else [{}]
    yield any(all(labels.get(one["key"]) in one["values"] for one in term.get("matchExpressions", [])) for term in terms)
    yield all(tolerated(Taint(**taint), spec.get("tolerations") or ()) for taint in taints if taint["effect"] != "PreferNoSchedule")
    (daemon,) = spec["containers"]
    asked = {key: value for key, value in daemon["resources"].get("requests", {}).items() if "/" in key}
    yield all(int(node["status"]["allocatable"].get(key, "0")) >= int(value) for key, value in asked.items())
