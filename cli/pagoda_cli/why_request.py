"""`pagoda why request/ID`: why a request went where it went, out of the gateways' logs. The id is the answer's header `x-request-id`.

Called by `why`. The logs have no text of a prompt or an answer, and no key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pagoda_contracts.names import LABEL_COMPONENT, LABEL_NAME
from pagoda_contracts.route import (
    HELD_FULL,
    HELD_IN_TURN,
    HELD_PREFIX,
    REASON_LEAST_LOADED,
    REASON_ONLY_ENDPOINT,
    REASON_ONLY_SUSPECT,
    REASON_ONLY_UNSOUND,
    REASON_OVERFLOW,
    REASON_PREFIX,
    REASON_SESSION,
    REPICK_PREFIX,
)
from pagoda_contracts.units import parse_duration

from pagoda_cli.errors import CliError
from pagoda_cli.kubectl import GATEWAY_NAMESPACE, Access, log_lines
from pagoda_cli.why_text import clean

PREFIX: Final = "request/"
_GATEWAYS: Final = f"{LABEL_NAME}=pagoda,{LABEL_COMPONENT}=gateway"
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MEANINGS: Final = {
    REASON_SESSION: "it has the conversation",
    REASON_PREFIX: "it has a part of the prompt's beginning in its cache",
    REASON_LEAST_LOADED: "it was expected to give the first token soonest",
    REASON_ONLY_ENDPOINT: "it was the only replica that could take the request",
    REASON_ONLY_SUSPECT: "no replica was free of doubt",
    REASON_ONLY_UNSOUND: "no replica was sound",
    REASON_OVERFLOW: "no replica took the request in time, and an API outside of the cluster answered",
    HELD_PREFIX + HELD_FULL: "the request waited because all replicas were full",
    HELD_PREFIX + HELD_IN_TURN: "the request waited because others waited before it",
}
Line = Mapping[str, Any]


def request_lines(access: Access, request_id: str, since: str) -> list[dict[str, Any]]:
    """What the gateways logged of a request, oldest first; CliError if nothing."""
    if not _ID.fullmatch(request_id):
        raise CliError(f"a request's id is up to 128 letters, digits, `.`, `_` and `-`, got {request_id!r}")
    try:
        parse_duration(since)
    except ValueError as error:
        raise CliError(f"--since: {error}") from None
    inside = access if access.namespace else access._replace(namespace=GATEWAY_NAMESPACE)
    options = (f"--selector={_GATEWAYS}", f"--since={since}", "--tail=-1", "--container=gateway")
    found = [line for text in log_lines(inside, request_id, *options) if (line := _parsed(text, request_id)) is not None]
    if not found:
        raise CliError(
            f"no gateway in {inside.namespace} has logged the request {request_id} within {since}. Check the id (the header "
            "x-request-id of the answer), --namespace and --since. Logs end with their pods, and gateway.accessLog must be true."
        )
    return sorted(found, key=lambda line: str(line.get("timestamp", "")))


def _parsed(text: str, request_id: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    mine = isinstance(line, dict) and request_id in (line.get("id"), line.get("request_id"))
    return line if mine else None


def request_text(lines: Sequence[Line]) -> str:
    """The page for people."""
    return "\n".join(clean(text) for line in lines for text in _page(line))


def _page(line: Line) -> Iterator[str]:
    if line.get("event") != "request":
        more = {name: value for name, value in line.items() if name not in ("event", "level", "timestamp", "request_id")}
        yield f"{line.get('timestamp', '')}  {line.get('event', '')}: {', '.join(f'{name} {value}' for name, value in more.items())}"
        return
    yield f"request {line['id']}: {line.get('status')} after {_seconds(line.get('total_ms'))}, {line.get('timestamp', '')}"
    yield "  " + ", ".join(f"{name} {line[name]}" for name in ("route", "tenant", "key", "model", "service") if name in line)
    yield from (f"  {text}" for part in (_refused, _routed, _counted) for text in part(line))


def _refused(line: Line) -> Iterator[str]:
    if "refusal" in line:
        of = "".join(f" ({line[name]})" for name in ("param", "why") if name in line)
        yield f"refused: {line['refusal']}{of}"


def _routed(line: Line) -> Iterator[str]:
    if "endpoint" in line:
        yield f"replica: {line['endpoint']}"
    if reason := line.get("reason"):
        yield f"reason: {reason}: {meaning(reason)}"
    if line.get("held_ms"):
        yield f"held for {_seconds(line['held_ms'])}"
    if line.get("retries"):
        yield f"further attempts: {line['retries']}"


def meaning(reason: str) -> str:
    """What a word of the header x-pagoda-route means."""
    if reason in _MEANINGS:
        return _MEANINGS[reason]
    if reason.startswith(HELD_PREFIX):
        return f"the request waited because no replica could take it; the most hopeful one was: {reason.removeprefix(HELD_PREFIX)}"
    if reason.startswith(REPICK_PREFIX):
        return f"another replica did not answer it: {reason.removeprefix(REPICK_PREFIX)}"
    return "this pagoda does not know the word; docs/routing.md has the list"


def _counted(line: Line) -> Iterator[str]:
    if "prompt_tokens" in line:
        yield (
            f"tokens: {line['prompt_tokens']} of the prompt, {line.get('cached_tokens', 0)} of them cached, "
            f"{line.get('completion_tokens', 0)} of the answer"
        )
    if "ttft_ms" in line:
        yield f"first token after {_seconds(line['ttft_ms'])}"
    if "finish" in line:
        yield f"ended by: {', '.join(line['finish'])}"


def _seconds(milliseconds: float | None) -> str:
    return "an unknown time" if milliseconds is None else f"{milliseconds / 1000:.3f} s"
