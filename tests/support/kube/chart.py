"""The chart as Helm renders it, for tests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from support.kube.cluster import Cluster

CHART = Path(__file__).parents[3] / "charts/pagoda"
RELEASE, NAMESPACE = "pagoda", "pagoda-system"
Body = dict[str, Any]
_texts: dict[tuple[str, str, Path | None, tuple[str, ...]], str] = {}


class _Strict(yaml.CSafeLoader):
    """Refuses two keys of one name, of which the API server would take the later one in silence."""


def _mapping(loader: _Strict, node: yaml.MappingNode) -> Body:
    names = [key.value for key, _ in node.value]
    assert len(set(names)) == len(names), f"{node.start_mark}: one key twice among {names}"
    return loader.construct_mapping(node, deep=True)


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def rendered(cluster: Cluster, *settings: str, chart: Path = CHART, values: Path | None = None) -> list[Body]:
    """All objects, with values set as on Helm's command line. Helm takes half a second, so its text is kept."""
    key = (cluster.name, str(chart), values, settings)
    if key not in _texts:
        options = ["--values", str(values)] if values else []
        options += [option for setting in settings for option in ("--set", setting)]
        _texts[key] = cluster.helm("template", RELEASE, str(chart), "--namespace", NAMESPACE, *options)
    return [document for document in yaml.load_all(_texts[key], _Strict) if document]


def of_kind(objects: list[Body], kind: str) -> list[Body]:
    return [found for found in objects if found["kind"] == kind]


def the(objects: list[Body], kind: str, name: str) -> Body:
    (found,) = [body for body in of_kind(objects, kind) if body["metadata"]["name"] == name]
    return found


def images(objects: list[Body]) -> list[str]:
    """The images of all pods, and those of the profile that the operator makes pods with."""
    templates = [body["spec"]["template"]["spec"] for body in of_kind(objects, "Deployment")]
    own = [one["image"] for pod in templates for one in (*pod.get("initContainers", ()), *pod["containers"])]
    return [*own, *profile(objects)["images"].values()]


def profile(objects: list[Body]) -> Body:
    """The ServingProfile `default`, as the operator gets it."""
    (found,) = [body["data"]["profile.json"] for body in of_kind(objects, "ConfigMap") if "profile.json" in body.get("data", {})]
    spec: Body = json.loads(found)
    return spec


def metric_names(text: str) -> set[str]:
    """Names of ours or vLLM's in a PromQL expression, without what Prometheus appends to a family."""
    return {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\b(?:vllm:|pagoda_)[a-z0-9_]+", text)}
