"""What the operator's inspections say of a model: the report of a service that has its address. Called by `plan_model`.

The cluster is asked only if a kubeconfig is at hand: `pagoda plan` works without one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pagoda_contracts.resources.service import INFERENCE_SERVICE, InferenceServiceSpec
from pagoda_placement.model import REPORT_KEY, SOURCE_KEY, is_report, map_name, source_of
from pydantic import ValidationError

from pagoda_cli.kubectl import Access, listed

Json = Mapping[str, Any]
_PATIENCE: Final = "--request-timeout=5s"  # a cluster that is away must not delay the answer for a minute
_USUAL: Final = "~/.kube/config"
_OWN: Final = "KUBERNETES_SERVICE_HOST"  # of a pod, whose kubectl needs no file


def at_hand(access: Access, environment: Mapping[str, str]) -> bool:
    """Whether kubectl and a kubeconfig are there."""
    files = (access.kubeconfig or environment.get("KUBECONFIG") or _USUAL).split(os.pathsep)
    named = any(one and Path(one).expanduser().is_file() for one in files)
    return shutil.which("kubectl") is not None and (named or _OWN in environment)


def report_of(access: Access, uri: str) -> str:
    """Returns the report about a model's address, from the first service that has one; empty if none has."""
    return next((report for service in _services(access) if (report := _report(access, service, uri))), "")


def _services(access: Access) -> list[Json]:
    """Of the namespace that is named; else of all, or of kubectl's own if the others may not be read."""
    kind = INFERENCE_SERVICE.resource
    everywhere = None if access.namespace else listed(access, kind, "--all-namespaces", _PATIENCE)
    return list((listed(access, kind, _PATIENCE) if everywhere is None else everywhere) or [])


def _report(access: Access, service: Json, uri: str) -> str:
    meta, spec = service["metadata"], _spec(service)
    if spec is None or spec.model.uri != uri:
        return ""
    inside, field = access._replace(namespace=meta.get("namespace", "")), f"--field-selector=metadata.name={map_name(meta['name'])}"
    data = next((one.get("data") or {} for one in listed(inside, "configmaps", field, _PATIENCE) or []), {})
    report = str(data.get(REPORT_KEY, ""))
    return report if data.get(SOURCE_KEY) == source_of(spec) and is_report(report) else ""


def _spec(service: Json) -> InferenceServiceSpec | None:
    """None if this version cannot read it."""
    try:
        return InferenceServiceSpec.model_validate(service["spec"])
    except (KeyError, ValidationError):
        return None
