"""JSON schemas of every kind a cluster serves, for kubeconform: made of the OpenAPI documents that its API server publishes.

Called by `pagoda-devcluster schemas`. Whatever CRDs are installed are in them, ours too. An unknown field is refused, as kubeconform's
`-strict` would; nothing is fetched from anywhere.
"""

import json
from pathlib import Path
from typing import Any

from pagoda_devcluster.client.api import Api

Document = dict[str, Any]
KINDS = "x-kubernetes-group-version-kind"
KEEP = "x-kubernetes-preserve-unknown-fields"
# For kubeconform's -schema-location; ResourceAPIVersion there is the version alone.
TEMPLATE = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"


def file_name(group: str, version: str, kind: str) -> str:
    """As TEMPLATE has it: kubeconform lowers kinds, and calls the core group what stands before the slash in `v1`."""
    return f"{group or version}_{version}_{kind.lower()}.json"


def schemas_of(document: Document) -> dict[str, Document]:
    """File name → schema, of one OpenAPI v3 document. References point into the copy of all components that each file carries."""
    components = {name: closed(schema) for name, schema in document.get("components", {}).get("schemas", {}).items()}
    made = {}
    for name, schema in components.items():
        for kind in schema.get(KINDS, []):
            found = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": reachable(name, components)}}
            made[file_name(kind["group"], kind["version"], kind["kind"])] = found
    return made


def closed(schema: Any) -> Any:
    """The same, where an object with known properties has no others."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema and not schema.get(KEEP):
        made["additionalProperties"] = False
    return made


def reachable(name: str, components: dict[str, Document]) -> dict[str, Document]:
    found: dict[str, Document] = {}
    ahead = [name]
    while ahead:
        one = ahead.pop()
        if one not in found and one in components:
            found[one] = components[one]
            ahead += references(components[one])
    return found


def references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for one in schema for name in references(one)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"].rpartition("/")[2]] if isinstance(schema.get("$ref"), str) else []
    return own + [name for key, value in schema.items() if key != "$ref" for name in references(value)]


def write(api: Api, folder: Path) -> int:
    """Returns how many."""
    folder.mkdir(parents=True, exist_ok=True)
    index = api.get("/openapi/v3") or {"paths": {}}
    made: dict[str, Document] = {}
    for path, found in index["paths"].items():
        if path.startswith("apis/") or path == "api/v1":
            made |= schemas_of(api.get(found["serverRelativeURL"]) or {})
    for name, schema in made.items():
        (folder / name).write_text(json.dumps(schema))
    return len(made)
