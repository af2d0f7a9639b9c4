"""docs/crds.md: every field of every kind, from the schemas that the API server gets. Pure; `generate` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pagoda_contracts.crds.crdgen import KINDS, crd
from pagoda_contracts.names import API_VERSION
from pagoda_contracts.resources.meta import Kind

PATH: Final = "docs/crds.md"
_HEAD: Final = f"""# Objects

GENERATED from contracts/pagoda_contracts/resources by `make generate`. Do not edit.

All are of `{API_VERSION}` and in the category `pagoda` (`kubectl get pagoda`). A field that nothing acts on yet says so, and the operator
names it in the Ready condition of a service that sets it ([roadmap.md](roadmap.md)). Unknown fields are refused by `kubectl apply`.
`pagoda validate FILE…` gives the API server's verdict without a cluster, with line and path.

KServe has a kind of the same name as InferenceService. If both are installed, `inferenceservices` and `isvc` reach KServe's. The names
below always reach Pagoda's.

Durations are Go strings (`800ms`, `10m`, `1h30m`), sizes and cores Kubernetes quantities (`250m`, `4Gi`). Optional means absent.
**Bold** fields are required.
"""
_BOUNDS: Final = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "maxLength": "≤ {} characters",
    "minItems": "≥ {} entries",
    "maxItems": "≤ {} entries",
    "minProperties": "≥ {} entries",
    "maxProperties": "≤ {} entries",
}


def text() -> str:
    """The whole page."""
    return _HEAD + "".join(_kind(kind) for kind in KINDS)


def _kind(kind: Kind) -> str:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    short = f" or `kubectl get {kind.short_names[0]}`" if kind.short_names else ""
    parts = [f"\n## {kind.kind}\n\n{schema['description']} {kind.scope}; `kubectl get {kind.resource}`{short}.\n"]
    for part in ("spec", "status"):
        if part in schema["properties"]:
            rows = "".join(_rows(schema["properties"][part], part))
            parts.append(f"\n| {part} | type | default | accepted | meaning |\n|---|---|---|---|---|\n{rows}")
    rules = list(_rules(schema, ""))
    if rules:
        parts.append("\nRules:\n\n" + "".join(f"- {rule}\n" for rule in rules))
    return "".join(parts)


def _rows(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        yield _row(f"{path}.{name}", field, required=name in schema.get("required", []))
        inner, mark = (field["items"], "[]") if "items" in field else (field, "")
        yield from _rows(inner, f"{path}.{name}{mark}")


def _row(path: str, field: dict[str, Any], *, required: bool) -> str:
    short = path.partition(".")[2]
    name = f"**`{short}`**" if required else f"`{short}`"
    default = field.get("default", "")
    shown = f"`{json.dumps(default)}`" if default != "" and not isinstance(default, dict) else ""
    return f"| {name} | {_type(field)} | {shown} | {_accepted(field)} | {_cell(field['description'])} |\n"


def _type(field: dict[str, Any]) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "items" in field:
        return f"list of {field['items']['type']}"
    if _is_union(field):
        return "number or map"
    return "map" if "additionalProperties" in field else str(field["type"])


def _is_union(field: dict[str, Any]) -> bool:
    return "type" not in field and "additionalProperties" in field


def _accepted(field: dict[str, Any]) -> str:
    if _is_union(field):  # each value of the map is bounded as the number is
        field = field["additionalProperties"]
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    of_text = field.get("items", {}).get("enum")
    bounds = [shape.format(field[name]) for name, shape in _BOUNDS.items() if name in field and not field.get("x-kubernetes-int-or-string")]
    return ", ".join([*bounds, *(f"`{value}`" for value in of_text or ())])


def _rules(schema: dict[str, Any], path: str) -> Iterator[str]:
    # What a text must look like is said where its field is described.
    of_text = schema.get("x-kubernetes-int-or-string") or "pattern" in schema
    for rule in () if of_text else schema.get("x-kubernetes-validations", ()):
        yield f"`{path or 'metadata'}`: {_cell(rule['message'])}"
    for name, field in schema.get("properties", {}).items():
        below = f"{path}.{name}".removeprefix(".")
        yield from _rules(field.get("items", field), f"{below}[]" if "items" in field else below)


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("<", "&lt;")
