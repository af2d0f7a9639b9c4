"""Clusters as platforms make them: nodes of the dev cluster's layouts, the chart's default profile, and the scheduler's answer to a pod
template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pagoda_devcluster.gpus import dra, layout
from pagoda_devcluster.gpus.devices import allocatable
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_operator.api.state import DEPLOYMENTS, PROFILES, RESOURCE_CLAIM_TEMPLATES
from pagoda_placement.nodes import Taint, tolerated
from support.harness.harness import Harness
from support.harness.inventories import Body, inventory
from support.harness.placing import ENGINE, inspected
from support.kube.chart import CHART
from support.kube.fake_api import copied, profile_body

LAYOUTS = Path(__file__).parents[3] / "devcluster/layouts"
# More than any replica of these tests asks for: what is judged is where it may go.
_ROOM = {"cpu": "999", "memory": "9999Gi", "pods": "110"}
_EQUALITY = re.compile(r"device\.attributes\['gpu\.nvidia\.com'\]\.(?P<name>\w+) == '(?P<value>[^']*)'")


@cache
def classes(name: str) -> tuple[layout.NodeClass, ...]:
    """The classes of a layout; weight 0: of a pool without nodes."""
    return layout.read(LAYOUTS / f"{name}.yaml").classes


@cache
def nodes(name: str, least: int = 1) -> tuple[Body, ...]:
    """One node of each class that has a weight; with `least` 0 of those of pools without nodes as well."""
    return tuple(_node(one) for one in classes(name) if one.weight >= least)


@cache
def slices(name: str, least: int = 1) -> tuple[Body, ...]:
    """What a DRA driver publishes for them where it has the devices alone."""
    found = (dra.resource_slice(one, one.name, "uid") for one in classes(name) if one.weight >= least and not one.device_plugin)
    return tuple(placed[1] for placed in found if placed)


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
    made.inventory = inventory(*nodes(name), slices=slices(name))
    inspected(made)
    made.settle()
    return made


def template(made: Harness) -> Body:
    """Of the service's pods."""
    (deployment,) = made.api.of(DEPLOYMENTS)
    found: Body = deployment["spec"]["template"]
    return found


def takes(made: Harness, name: str) -> list[str]:
    """Nodes, of pools without nodes too, that the scheduler would give the service's pod: by node affinity, taints and devices."""
    spec, published = template(made)["spec"], {body["spec"]["nodeName"]: body["spec"]["devices"] for body in slices(name, 0)}
    claims = [one["spec"]["spec"]["devices"]["requests"][0]["exactly"] for one in made.api.of(RESOURCE_CLAIM_TEMPLATES)]
    fits = {node: all(any(_chosen(claim, one) for one in published.get(node, ())) for claim in claims) for node in names(name)}
    return [node["metadata"]["name"] for node in nodes(name, 0) if fits[node["metadata"]["name"]] and all(_judged(spec, node))]


def names(name: str) -> list[str]:
    """Of the classes, and of the one node of each."""
    return [one.name for one in classes(name)]


def _chosen(claim: Body, device: Body) -> bool:
    """Whether a claim's class and selectors, which are equalities of attributes, take a device."""
    chosen = {body["metadata"]["name"]: body["spec"]["selectors"] for _, body in dra.device_classes()}
    selectors = [*chosen.get(claim["deviceClassName"], [{"cel": {"expression": "false"}}]), *claim.get("selectors", [])]
    terms = [term for one in selectors for term in one["cel"]["expression"].split(" && ") if not term.startswith("device.driver ")]
    found = [_EQUALITY.fullmatch(term) for term in terms]
    return all(term and device["attributes"][term["name"]].get("string") == term["value"] for term in found)


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
