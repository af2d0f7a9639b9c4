"""What a client's write of an object owns afterwards, in the form of `managedFields`, as an API server would note it."""

from __future__ import annotations

import json
from typing import Any

_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env"), ("name",)),
    "volumeMounts": ("mountPath",),
    "ports": ("containerPort", "protocol"),
}


def entry(manager: str, before: Any, after: Any) -> dict[str, Any]:
    """The entry of a manager who made the spec `after` of `before`."""
    return {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": owned(before, after)}}


def owned(before: Any, after: Any, field: str = "") -> dict[str, Any]:
    """The fields that differ. A map or a list with identity is entered, any other value is owned as a whole."""
    itself: dict[str, Any] = {".": {}} if before is None else {}
    if isinstance(after, dict):
        known = before if isinstance(before, dict) else {}
        return itself | {f"f:{name}": owned(known.get(name), value, name) for name, value in after.items() if known.get(name) != value}
    keys = _KEYS.get(field, ())
    if not keys or not isinstance(after, list):
        return {}
    known = {_identity(one, keys): one for one in before or ()}
    changed = {_identity(one, keys): one for one in after if known.get(_identity(one, keys)) != one}
    return itself | {f"k:{identity}": owned(known.get(identity), one) for identity, one in changed.items()}


def _identity(one: Any, keys: tuple[str, ...]) -> str:
    return json.dumps({key: one[key] for key in keys}, separators=(",", ":"))
