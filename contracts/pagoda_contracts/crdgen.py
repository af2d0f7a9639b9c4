"""Writes the CRDs: crds/*.yaml, and the same wrapped as chart templates. `pagoda-crdgen [--check] ROOT`.

`--check` writes nothing and exits 1 on any difference (used by `make verify`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pagoda_contracts.names import GROUP, VERSION
from pagoda_contracts.resources.meta import Column, Kind
from pagoda_contracts.resources.profile import SERVING_PROFILE
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from pagoda_contracts.schema import structural
from pagoda_contracts.yamltext import dump_yaml

KINDS = (INFERENCE_SERVICE, SERVING_PROFILE)
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
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": kind.scope,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
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


def main() -> None:
    """Door of `pagoda-crdgen`."""
    parser = argparse.ArgumentParser(prog="pagoda-crdgen", description=__doc__)
    parser.add_argument("root", type=Path, help="the project's root")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 on a difference")
    arguments = parser.parse_args()
    stale = [path for path, text in files().items() if not _same(arguments.root / path, text)]
    if arguments.check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make generate`")
    for path in stale:
        target = arguments.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(files()[path])


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text
