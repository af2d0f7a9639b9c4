"""The CRDs as text: crds/*.yaml, and the same wrapped as chart templates. Pure; `generate` writes them."""

from __future__ import annotations

from typing import Any

from pagoda_contracts.crds.schema import structural
from pagoda_contracts.crds.yamltext import dump_yaml
from pagoda_contracts.names import GROUP, VERSION
from pagoda_contracts.resources.adapter import LORA_ADAPTER
from pagoda_contracts.resources.meta import Column, Kind
from pagoda_contracts.resources.profile import SERVING_PROFILE
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from pagoda_contracts.resources.tenant import TENANT_QUOTA

KINDS = (INFERENCE_SERVICE, LORA_ADAPTER, SERVING_PROFILE, TENANT_QUOTA)
_HEADER = "# GENERATED from contracts/pagoda_contracts/resources by `make generate`. Do not edit.\n"
_KEEP = "    helm.sh/resource-policy: keep\n"


def crd(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    has_status = "status" in kind.model.model_fields
    subresources: dict[str, Any] = {"status": {}} if has_status else {}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": structural(kind.model)},
        "subresources": subresources,
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource},
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
                "categories": ["pagoda"],
            },
            "versions": [version],
        },
    }


def _column(column: Column) -> dict[str, Any]:
    out = {"name": column.name, "type": column.type, "jsonPath": column.json_path, "description": column.description}
    return {**out, "priority": column.priority} if column.priority else out


def files() -> dict[str, str]:
    """Path below the project's root → content, for every generated file."""
    out: dict[str, str] = {}
    for kind in KINDS:
        text = dump_yaml(crd(kind))
        out[f"crds/{kind.plural}.yaml"] = _HEADER + text
        out[f"charts/pagoda/templates/crds/{kind.plural}.yaml"] = _wrap(text)
    return out


def _wrap(text: str) -> str:
    """As a chart template: Helm never upgrades its own crds/ folder, and braces of CEL must not be read as actions."""
    if "{{" in text:
        raise ValueError("a CRD holds '{{', which Helm would evaluate")
    annotations = "  {{- if .Values.crds.keep }}\n  annotations:\n" + _KEEP + "  {{- end }}\n"
    kept = text.replace("metadata:\n", "metadata:\n" + annotations, 1)
    return f"{{{{- if .Values.crds.install }}}}\n{_HEADER}{kept}{{{{- end }}}}\n"
