"""The anthropic client's own types and its accumulator as the judge of what a client reads.

Its import takes 2.7 s of CPU, and each worker of the unit tier collects every file: it is imported by the first test that asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import TypeAdapter


@cache
def _events() -> TypeAdapter[Any]:
    from anthropic.types import RawMessageStreamEvent

    return TypeAdapter(RawMessageStreamEvent)


def message(document: Any) -> Any:
    """A whole message."""
    from anthropic.types import Message

    return Message.model_validate(document)


def accumulated(documents: Iterable[Any]) -> dict[str, Any]:
    """The message that the client's accumulator makes of a stream's events."""
    from anthropic.lib.streaming._messages import accumulate_event

    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for document in documents:
        snapshot = accumulate_event(event=_events().validate_python(document), current_snapshot=snapshot, json_bufs=buffers)
    return snapshot.to_dict()  # type: ignore[no-any-return]
