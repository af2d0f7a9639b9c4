"""How often something may happen: per change of a user's, at rest, and from a kill to the first write that counts. Pure, as invariants.py,
which has the rest of the fault matrix's numbers: I6 no hot loop, I7 idempotent, I8 a condition flips twice per change, I12 recovery.

Nothing here asks a clock for an order: the server's versions say what came before what, in the history and in the journal.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from pagoda_operator.api.state import EVENTS, PODS, QUOTAS, SERVICES
from support.kube.client import Body
from support.kube.fault_proxy import Entry
from support.kube.recorded import Event

FLIPS = 2
# Writes for each object that is written in a change, and for each pod that starts in it: the status of its service says that it has no
# node, that it pulls its image, that it loads, and that it is ready, if the operator sees each of these. And of one object: the status of a
# service that rolls out is written 6 or 7 times, and once a minute more.
WRITES, OF_ONE = 3, 20


def changes(events: Sequence[Event]) -> list[int]:
    """The versions at which a user changed something: a service or a quota came, got another spec or went; or at which the cluster did: a
    pod that was ready is not any more, though nobody deletes it."""
    specs: dict[str, int] = {}
    ready: set[str] = set()
    found = []
    for event in events:
        meta = event.body["metadata"]
        uid = meta["uid"]
        if event.kind in (SERVICES.kind, QUOTAS.kind):
            spec = -1 if event.change == "DELETED" else meta.get("generation", 0)
            if specs.get(uid) != spec:
                specs[uid] = spec
                found.append(event.version)
        elif event.kind == PODS.kind:
            now = _ready(event.body) and event.change != "DELETED"
            if uid in ready and not now and "deletionTimestamp" not in meta:
                found.append(event.version)
            (ready.add if now else ready.discard)(uid)
    return found


def _ready(pod: Body) -> bool:
    return any(line["type"] == "Ready" and line["status"] == "True" for line in pod.get("status", {}).get("conditions", []))


def flips(events: Sequence[Event], allowed: int = FLIPS) -> Iterator[str]:
    """I8: between two changes a condition changes its status at most twice. What a condition begins with is no flip."""
    points, seen = changes(events), dict[tuple[str, str], str]()
    turns: dict[tuple[str, str, int], list[str]] = {}
    for event in events:
        if event.kind != SERVICES.kind:
            continue
        for condition in event.body.get("status", {}).get("conditions", []):
            key, status = (event.body["metadata"]["uid"], condition["type"]), condition["status"]
            before = seen.setdefault(key, status)
            if before != status:
                turns.setdefault((*key, bisect_right(points, event.version)), [before]).append(status)
                seen[key] = status
    yield from (
        f"I8: in change {change} {kind} went {' '.join(reported)}"
        for (_, kind, change), reported in turns.items()
        if len(reported) - 1 > allowed
    )


def hot(events: Sequence[Event], journal: Iterable[Entry]) -> Iterator[str]:
    """I6: between two changes at most three writes for each object that is written and each pod that starts, and twenty of any. A request
    that was struck may have to be made again; an Event is an object for each word, and is counted as such."""
    written, struck = written_by_change(events, journal)
    starts = started(events)
    for change, objects in written.items():
        most = WRITES * (len(objects) + starts[change]) + struck[change]
        if objects.total() > most:
            yield f"I6: {objects.total()} writes in change {change}, at most {most}: {dict(objects.most_common(3))}"
        often = [(path, count) for path, count in objects.items() if count > OF_ONE + struck[change]]
        yield from (f"I6: {count} writes of {path} in change {change}" for path, count in often)


def started(events: Sequence[Event]) -> Counter[int]:
    """Of each change, how many pods were seen in it first."""
    points = changes(events)
    first = {event.body["metadata"]["uid"]: event.version for event in reversed(events) if event.kind == PODS.kind}
    return Counter(bisect_right(points, version) for version in first.values())


def written_by_change(events: Sequence[Event], journal: Iterable[Entry]) -> tuple[dict[int, Counter[str]], Counter[int]]:
    """Of each change, how often which object was written; and how many requests were struck in it."""
    points, newest = changes(events), 0
    written: dict[int, Counter[str]] = defaultdict(Counter)
    struck: Counter[int] = Counter()
    for entry in journal:
        if entry.seen.number:  # a Lease may be from before a restored store
            newest = max(newest, entry.version)  # a write that changed nothing has an older one
        change = bisect_right(points, newest)
        struck[change] += entry.act != "forward" and not entry.seen.watch
        if entry.seen.write and entry.seen.number and 200 <= entry.code < 300:
            written[change][_object(entry)] += 1
    return written, struck


def _object(entry: Entry) -> str:
    """What is written: its path without a subresource, of a new one the name that it was given."""
    path = entry.seen.path.removesuffix("/status")
    return f"{path}/{json.loads(entry.body)['metadata']['name']}" if entry.seen.method == "POST" else path


def stirred(journal: Iterable[Entry]) -> Iterator[str]:
    """I7: at rest nothing is asked to be written, whatever the answer. The Lease is another matter, and the Event of its new holder."""
    writes = (entry for entry in journal if entry.seen.write and entry.seen.number and not _about_the_lease(entry))
    yield from (f"I7: {entry.seen.method} {entry.seen.path} at rest" for entry in writes)


def _about_the_lease(entry: Entry) -> bool:
    told = entry.seen.method == "POST" and entry.seen.path.endswith("/events")
    return told and json.loads(entry.body)["regarding"]["kind"] == "Lease"


class Recovery(NamedTuple):
    """From a kill to the next life's first write that counts (an Event does not): that life's requests before it, and seconds. `owed`: a
    write was on its way that the server never saw, so that one was certainly wanted."""

    requests: int
    seconds: float
    owed: bool


def recoveries(journal: Sequence[Entry]) -> list[Recovery]:
    """I12, of every life that came to write before it was killed too."""
    deaths = {entry.life: entry for entry in journal if entry.killed}
    return [found for life, death in deaths.items() if (found := _recovered(death, [e for e in journal if e.life == life + 1]))]


def _recovered(death: Entry, after: Sequence[Entry]) -> Recovery | None:
    counts = [n for n, entry in enumerate(after) if _counts(entry) and 200 <= entry.code < 300]
    if not counts:
        return None
    before = [entry for entry in after[: counts[0]] if entry.seen.number > 0]
    return Recovery(len(before), after[counts[0]].at - death.killed, death.act == "kill_before" and _counts(death))


def _counts(entry: Entry) -> bool:
    return entry.seen.write and bool(entry.seen.number) and entry.seen.plural != EVENTS.plural


def slow(journal: Sequence[Entry], most: int) -> Iterator[str]:
    """I12: whoever owes a write has made it after so many requests. Requests and not seconds: those are the machine's."""
    owed = [found.requests for found in recoveries(journal) if found.owed]
    yield from (f"I12: {count} requests before the first write, at most {most}" for count in owed if count > most)
