"""The chart as Helm renders it, for tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from support.kube.cluster import Cluster

CHART = Path(__file__).parents[3] / "charts/pagoda"
RELEASE, NAMESPACE = "pagoda", "pagoda-system"
Body = dict[str, Any]


def rendered(cluster: Cluster, *settings: str, chart: Path = CHART) -> list[Body]:
    """All objects, with values set as on Helm's command line."""
    options = [option for setting in settings for option in ("--set", setting)]
    text = cluster.helm("template", RELEASE, str(chart), "--namespace", NAMESPACE, *options)
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(objects: list[Body], kind: str) -> list[Body]:
    return [found for found in objects if found["kind"] == kind]


def the(objects: list[Body], kind: str, name: str) -> Body:
    (found,) = [body for body in of_kind(objects, kind) if body["metadata"]["name"] == name]
    return found


def metric_names(text: str) -> set[str]:
    """Names of ours or vLLM's in a PromQL expression, without what Prometheus appends to a family."""
    return {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in re.findall(r"\b(?:vllm:|pagoda_)[a-z0-9_]+", text)}
