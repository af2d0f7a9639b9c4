"""What the audit log and the operator's own log of its runs say of one service after another, as bench/operator.py adds it up. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from pagoda_operator.api.state import SERVICES
from support.judges.answered import Ran, Seen, Span, Written
from support.kube.operator_process import USER


def edits(log: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Whose spec a person changed, and when that reached the API server: a watch may tell of it before its request is answered."""
    return [(event["objectRef"]["name"], stamp(event["requestReceivedTimestamp"])) for event in log if _edited(event)]


def _edited(event: dict[str, Any]) -> bool:
    ref = event.get("objectRef", {})
    spec = ref.get("resource") == SERVICES.plural and not ref.get("subresource")
    return bool(event["user"]["username"] != USER and event["verb"] == "patch" and spec)


def known(names: set[str], log: list[dict[str, Any]], runs: list[dict[str, Any]]) -> dict[str, Seen]:
    """Of each service what the operator wrote, its runs, and when the API server was at work on it: for us, or on the edit itself."""
    seen = {name: Seen([], [], []) for name in names}
    for event in (event for event in log if event["user"]["username"] == USER or _edited(event)):
        done = stamp(event["stageTimestamp"])
        for name in concerned(event) & names:
            seen[name].served.append(Span(stamp(event["requestReceivedTimestamp"]), done))
            if event["verb"] == "patch" and event["user"]["username"] == USER:
                seen[name].writes.append(Written(event["objectRef"]["resource"], done))
    for run in runs:
        if run["name"] in names:
            ended = stamp(run["timestamp"])
            began = ended - run["took_s"]
            seen[run["name"]].runs.append(Ran(began - run["queued_s"], began, ended, run["writes"]))
    return seen


def announced(asked: list[tuple[str, float]], reported: Mapping[str, Sequence[float]]) -> list[tuple[str, Span]]:
    """Until when the API server had told nobody of each edit: `told` are the times at which another watch saw new generations."""
    spans = []
    for name, at in asked:
        later = [moment for moment in reported.get(name, ()) if moment >= at]
        spans += [(name, Span(at, min(later)))] if later else []
    return spans


def concerned(event: dict[str, Any]) -> set[str]:
    """The services that a request was made for: by the object's name, or by the labels of a list."""
    name = event.get("objectRef", {}).get("name", "")
    return {re.split(r"[-.]", name)[0]} if name else {*re.findall(r"\bs\d+\b", unquote(event["requestURI"]).partition("?")[2])}


def stamp(text: str) -> float:
    """Seconds of an audit event's time."""
    return datetime.fromisoformat(text).timestamp()
