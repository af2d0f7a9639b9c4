"""I3, no lost update: what a user last asked for, and was told is done, is what there is, at every version. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pagoda_operator.api.state import QUOTAS, SERVICES
from support.kube.client import Asked, Body
from support.kube.fault_proxy import Entry
from support.kube.recorded import Event

# A user's own.
_OWN = (SERVICES, QUOTAS)


def foreign_writes(journal: Iterable[Entry]) -> Iterator[str]:
    """A service and a quota are their users'; the operator writes their status alone."""
    own = {resource.plural for resource in _OWN}
    for entry in journal:
        if entry.seen.write and entry.seen.plural in own and not entry.seen.path.endswith("/status"):
            yield f"I3: {entry.seen.method} {entry.seen.path}"


def lost(events: Sequence[Event], asked: Iterable[Asked]) -> Iterator[str]:
    """Field by field, of what was asked at this version or before."""
    waiting: dict[str, list[Asked]] = defaultdict(list)
    for one in sorted(asked, key=lambda one: one.version, reverse=True):
        waiting[one.uid].append(one)
    wanted: dict[str, Body] = defaultdict(dict)
    for event in events:
        uid = event.body["metadata"]["uid"]
        if event.change == "DELETED" or event.kind not in [resource.kind for resource in _OWN]:
            continue
        while waiting[uid] and waiting[uid][-1].version <= event.version:
            wanted[uid] = _merged(wanted[uid], waiting[uid].pop().spec)
        yield from (f"I3: {event.kind} {line}" for line in _differences("spec", wanted[uid], event.body["spec"]))


def _merged(before: Body, patch: Body) -> Body:
    """As the API server merges; what was taken away stays known as None."""
    found = dict(before)
    for name, value in patch.items():
        old = found.get(name)
        found[name] = _merged(old if isinstance(old, dict) else {}, value) if isinstance(value, dict) else value
    return found


def _differences(path: str, wanted: Any, found: Any) -> Iterator[str]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for name, value in wanted.items():
            yield from _differences(f"{path}.{name}", value, found.get(name))
    elif wanted != found and wanted != {}:
        yield f"{path} is {found!r}, its user last asked for {wanted!r}"
