"""Chooses events of the API server's audit log: who asked for what, and since when. Pure; later promises are counted with it.

The `audit` command and the tests' cluster helper call it. An event is in the log before the client has its answer (blocking mode).
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from pagoda_devcluster.cluster.errors import UsageError

Event = dict[str, Any]
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
READS = frozenset({"get", "list", "watch"})
# Asked, answered and never stored, though the verb is `create`.
QUESTIONS = frozenset(
    {"tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "localsubjectaccessreviews", "selfsubjectrulesreviews"}
)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WORDS = ("write", "read", "all")


def select(lines: Iterable[str], user: str | None, since: datetime | float | None, verbs: str | Collection[str]) -> list[Event]:
    """Finished requests, oldest first. `verbs`: "write", "read", "all", or the verbs themselves."""
    start = moment(since)
    events = (event for line in lines for event in parsed(line))
    return [event for event in events if finished(event) and wanted(event, user, verbs) and received(event) >= start]


def parsed(line: str) -> Iterator[Event]:
    """None of a line that is being written, wherever in it the reader came."""
    with suppress(json.JSONDecodeError):
        yield json.loads(line)


def finished(event: Event) -> bool:
    return event["stage"] in ("ResponseComplete", "Panic")


def wanted(event: Event, user: str | None, verbs: str | Collection[str]) -> bool:
    if user is not None and event["user"]["username"] != user:
        return False
    if verbs == "write":
        return event["verb"] in WRITES and changes(event)
    if verbs == "all":
        return True
    return event["verb"] in (READS if verbs == "read" else verbs)


def changes(event: Event) -> bool:
    """Or would have: one that was refused counts too, since a client that tries in vain is no quiet one."""
    return event.get("objectRef", {}).get("resource") not in QUESTIONS and "dryRun=" not in event["requestURI"]


def received(event: Event) -> datetime:
    return datetime.fromisoformat(event["requestReceivedTimestamp"])


def moment(since: datetime | float | None) -> datetime:
    if since is None:
        return datetime.min.replace(tzinfo=UTC)
    return since if isinstance(since, datetime) else datetime.fromtimestamp(since, UTC)


def parse_verbs(text: str) -> str | frozenset[str]:
    """One of the three words, or verbs with commas between them."""
    if text in WORDS:
        return text
    named = frozenset(filter(None, text.split(",")))
    if unknown := sorted(named - WRITES - READS):
        raise UsageError(f"--verbs must be {', '.join(WORDS)}, or some of {', '.join(sorted(WRITES | READS))}, got {', '.join(unknown)}")
    if not named:
        raise UsageError(f"--verbs is empty. It must be {', '.join(WORDS)}, or verbs separated by commas")
    return named


def parse_since(text: str, now: datetime) -> datetime:
    """`90s`, `5m`, `2h` ago; epoch seconds; or a time as RFC 3339 writes it, which is the API server's own way."""
    if found := re.fullmatch(r"(\d+)([smhd])", text):
        return now - timedelta(seconds=int(found[1]) * UNITS[found[2]])
    try:
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return datetime.fromtimestamp(float(text), UTC)
        parsed = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"--since {text!r}: write 90s, 5m or 2h (ago), epoch seconds, or 2026-01-31T12:00:00Z") from error
    if parsed.tzinfo is None:
        raise UsageError(f"--since {text!r} names no time zone: add Z or an offset such as +02:00")
    return parsed


def line_of(event: Event) -> str:
    """One event for the eye: when, who, what, where, and how it ended."""
    target = event.get("objectRef", {})
    parts = [target.get("resource", ""), target.get("subresource", "")]
    place = "/".join(filter(None, [target.get("namespace", ""), target.get("name", "")]))
    what = "/".join(filter(None, parts)) or event["requestURI"]
    code = event.get("responseStatus", {}).get("code", "-")
    return f"{event['requestReceivedTimestamp']} {event['user']['username']} {event['verb']} {what} {place or '-'} {code}"
