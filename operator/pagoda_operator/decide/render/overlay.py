"""Merges pod templates, lists the paths of an overlay, and compares a live object with what was rendered. Pure.

Lists whose entries have an identity (containers, volumes, env, ...) merge by it; all others are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import FIELD_MANAGER
from pagoda_contracts.units import parse_quantity
from pagoda_placement.values import Json

# List field → what identifies its entries.
_IDENTITY: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "name",
    "ownerReferences": "uid",
}
# Fields of a pod that are read: maps, maps whose keys are a person's own, and lists of maps.
_MAPS: Final = frozenset(("metadata", "spec", "affinity", "nodeAffinity", "securityContext", "resources", "emptyDir"))
_FREE_MAPS: Final = frozenset(("labels", "annotations", "nodeSelector", "requests", "limits"))
_LISTS: Final = frozenset((*_IDENTITY, "tolerations", "topologySpreadConstraints"))
_NAMED: Final = frozenset(("containers", "initContainers", "volumes"))
# Fields whose values, or values below them, are quantities: the API server writes 0.5 as 500m and 1024Mi as 1Gi.
_QUANTITIES: Final = frozenset({"requests", "limits", "sizeLimit"})

# `kubectl rollout restart` writes it. It gives a pod nothing, and to remove it would restart the pods once more.
_RESTARTED: Final = ("spec", "template", "metadata", "annotations", "kubectl.kubernetes.io/restartedAt")

_MAX_SHOWN: Final = 64
# Names of environment variables, or how they begin.
_POWERFUL: Final = ("LD_", "PYTHON", "PAGODA_", "NVIDIA_VISIBLE_DEVICES")


def merge(base: Any, over: Any, field: str = "") -> Any:
    """`over` merged onto `base`: maps by key, lists with identity by identity, all else replaced."""
    if isinstance(base, dict) and isinstance(over, dict):
        return {key: merge(base.get(key), over[key], key) if key in over else base[key] for key in (base | over)}
    identity = _IDENTITY.get(field)
    if identity and _identified(base, identity) and _identified(over, identity):
        return _merge_lists(base, over, identity, whole=field == "volumes")
    return base if over is None else over


def _merge_lists(base: list[Any], over: list[Any], identity: str, *, whole: bool) -> list[Any]:
    """`whole` replaces entries instead of merging them: a merged volume would have two sources."""
    new = {entry[identity]: entry for entry in over}
    pairs = [(entry, new.pop(entry[identity], None)) for entry in base]
    return [(after or before) if whole else merge(before, after) for before, after in pairs] + list(new.values())


def _identified(value: Any, identity: str) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) and isinstance(entry.get(identity), str) for entry in value)


def misshapen(template: Any, path: tuple[str, ...] = ()) -> str:
    """The first field of a podTemplate that is no map or list where a pod has one; "" if there is none. The API server takes any."""
    field = path[-1] if path else "spec"
    if template is None or (path and field not in _MAPS | _FREE_MAPS | _LISTS and not field.startswith("[")):
        return ""
    if field in _LISTS:
        faults = _misshapen_entries(template, path, field) if isinstance(template, list) else iter([_wrong(path, "a list", template)])
    elif not isinstance(template, dict):
        return _wrong(path, "a map", template)
    else:
        faults = (misshapen(item, (*path, str(key))) for key, item in template.items() if field not in _FREE_MAPS)
    return next(filter(None, faults), "")


def _misshapen_entries(entries: list[Any], path: tuple[str, ...], field: str) -> Iterator[str]:
    for index, entry in enumerate(entries):
        where = (*path, f"[{index}]")
        if isinstance(entry, dict) and field in _NAMED and not isinstance(entry.get("name"), str):
            yield f"{written(where)} must have a name"
        else:
            yield misshapen(entry, where) if entry is not None else _wrong(where, "a map", entry)


def _wrong(path: tuple[str, ...], what: str, value: Any) -> str:
    return f"{written(path)} must be {what}, got {json.dumps(value)[:_MAX_SHOWN]}"


def leaves(value: Any, path: tuple[str, ...] = (), field: str = "") -> Iterator[tuple[str, ...]]:
    """The path of everything that an overlay sets; list entries with identity as `[name]`, other lists as one value."""
    identity = _IDENTITY.get(field)
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)), str(key))
    elif identity and value and _identified(value, identity):
        for entry in value:
            rest = {key: item for key, item in entry.items() if key != identity}
            yield from leaves(rest, (*path, f"[{entry[identity]}]"))
    else:
        yield path


def covers(allowed: str, path: Sequence[str]) -> bool:
    """Whether an allowed path such as `metadata.labels` or `spec.containers[daemon].env` is the path or contains it."""
    rest = allowed
    for step in path:
        if not rest:
            return True
        if not rest.startswith(step) or (len(rest) > len(step) and rest[len(step)] not in ".["):
            return False
        rest = rest[len(step) :].removeprefix(".")
    return not rest


def powerful_variable(path: Sequence[str]) -> tuple[str, ...]:
    """The path of an environment variable with more power than its process's own settings; empty if the path sets none. It is read from
    another object, such as a Secret of the namespace; or it brings foreign code into the process, speaks for the operator or takes
    devices."""
    place = path.index("env") + 1 if "env" in path else len(path)
    if path[0] != "spec" or place >= len(path) or not path[place].startswith("["):
        return ()
    read = "valueFrom" in path[place + 1 :]
    return tuple(path[: place + 1]) if read or path[place][1:].startswith(_POWERFUL) else ()


def written(path: Sequence[str]) -> str:
    """The path as a person writes it."""
    return ".".join(path).replace(".[", "[")


def lost(wanted: Any, result: Any) -> tuple[str, ...] | None:
    """The first path at which `result` differs from what was wanted; None if there is none.

    Additions in `result` are fine (defaults, other writers). Absent equals Go's zero value and quantities compare by value, because the API
    server does not store them as they were sent; otherwise each comparison would end in a needless write.
    """
    return _lost(wanted, result, "", quantity=False)


def _lost(wanted: Any, result: Any, field: str, *, quantity: bool) -> tuple[str, ...] | None:
    """The rest of the path, made on the way back: what differs is rare. `quantity`: whether a field above holds quantities."""
    if isinstance(wanted, dict):
        if wanted and not isinstance(result, dict):
            return ()
        for key, item in wanted.items():
            live = result.get(key)
            if type(item) is str and item == live:  # most leaves end here
                continue
            if (found := _lost(item, live, key, quantity=quantity or key in _QUANTITIES)) is not None:
                return (key, *found)
        return None
    if isinstance(wanted, list) and wanted and isinstance(result, list):
        return _lost_in_list(wanted, result, field, quantity=quantity)
    return None if _same(wanted, result) or (quantity and _same_quantity(wanted, result)) else ()


def _lost_in_list(wanted: list[Any], result: list[Any], field: str, *, quantity: bool) -> tuple[str, ...] | None:
    identity = _IDENTITY.get(field)
    if identity and _identified(wanted, identity) and _identified(result, identity):
        live = {entry[identity]: entry for entry in result}
        pairs = [(entry[identity], entry, live.get(entry[identity])) for entry in wanted]
        if any(found is None for _, _, found in pairs):
            return ()
    elif len(wanted) == len(result):
        pairs = [(index, *pair) for index, pair in enumerate(zip(wanted, result, strict=True))]
    else:
        return ()
    for step, entry, found in pairs:
        if (missing := _lost(entry, found, "", quantity=quantity)) is not None:
            return (f"[{step}]", *missing)
    return None


def _same(wanted: Any, result: Any) -> bool:
    if result is None:
        return wanted in (None, "", 0, [])
    return bool(wanted == result) and isinstance(wanted, bool) == isinstance(result, bool)


def _same_quantity(wanted: Any, result: Any) -> bool:
    try:
        return parse_quantity(str(wanted)) == parse_quantity(str(result))
    except ValueError:
        return False


class Edit(NamedTuple):
    """A part of an object that differs from what was rendered, and the field manager that set it; empty if that is unknown."""

    path: tuple[str, ...]
    manager: str


def edits(wanted: Json, live: Json) -> tuple[Edit, ...]:
    """What other field managers set in the spec, or added to it.

    An addition is known by its manager alone: the API server's own defaults, and what an admission webhook adds, have none.
    """
    specs = wanted.get("spec"), live.get("spec")
    found = (
        Edit(path, str(entry.get("manager", "")))
        for entry in by_others(live["metadata"])
        for path in _edited(entry["fieldsV1"]["f:spec"], *specs, ("spec",))
        if path != _RESTARTED
    )
    return tuple(dict.fromkeys(found))


def by_others(meta: Json) -> list[Json]:
    """The entries of managedFields by which another field manager owns a part of the spec."""
    entries: list[Json] = meta.get("managedFields") or []
    return [entry for entry in entries if entry.get("manager") != FIELD_MANAGER and "f:spec" in (entry.get("fieldsV1") or {})]


def disowned(meta: Json) -> list[Json]:
    """The managedFields without other managers' parts of the spec. A value that is written again as it is would stay theirs, and would be
    found again each time."""
    theirs = by_others(meta)
    rest = [(entry, {name: part for name, part in (entry.get("fieldsV1") or {}).items() if name != "f:spec"}) for entry in theirs]
    return [entry for entry in meta["managedFields"] if entry not in theirs] + [{**entry, "fieldsV1": part} for entry, part in rest if part]


def _edited(fields: Json, wanted: Any, live: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths among `fields`, which are in the form of managedFields, whose live values are not the wanted ones."""
    for field, below in fields.items():
        ours, theirs = _part(field, wanted), _part(field, live)
        if field == "." or theirs is None:
            continue
        here = (*path, _step(field))
        if below.keys() - {"."} and (ours is not None or field.startswith("f:")):
            yield from _edited(below, ours, theirs, here)
        elif ours is None or _differ(ours, theirs, here) or _differ(theirs, ours, here):
            yield here


def _differ(wanted: Any, result: Any, path: tuple[str, ...]) -> bool:
    return _lost(wanted, result, path[-1], quantity=not _QUANTITIES.isdisjoint(path)) is not None


def _part(field: str, value: Any) -> Any:
    """What a step of managedFields leads to: `f:` a field, `k:` the entry of a list with this identity; None if there is none."""
    kind, _, name = field.partition(":")
    if kind == "f":
        return value.get(name) if isinstance(value, dict) else None
    if kind != "k" or not isinstance(value, list):
        return None
    identity = json.loads(name).items()
    # What was rendered may leave a part of its identity to the API server's default (a port's protocol).
    return next((entry for entry in value if all(entry.get(part, found) == found for part, found in identity)), None)


def _step(field: str) -> str:
    kind, _, name = field.partition(":")
    return f"[{'/'.join(map(str, json.loads(name).values()))}]" if kind == "k" else name
