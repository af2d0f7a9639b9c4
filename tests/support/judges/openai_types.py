"""The openai client's own types as the judge of what a client reads: nothing is missing, nothing has another type, nothing is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

import pydantic
from openai.types.responses import Response, ResponseStreamEvent

# What OpenAI's own API sends though its client has no field for it (`store`), and what makes its client raise (`error`).
UNTYPED = {"Response": {"store"}, "ResponseErrorEvent": {"error"}}


def response(document: Mapping[str, Any]) -> Response:
    """A whole response."""
    found = Response.model_validate(document, strict=False)
    assert list(unknown(found)) == []
    return found


def event(document: Mapping[str, Any]) -> Any:
    """An event of a stream, by the type that it names."""
    found = _event_types()[document["type"]].model_validate(document)
    assert list(unknown(found)) == []
    return found


def unknown(model: Any, path: str = "") -> Iterator[str]:
    """Paths of fields that the client does not know, at any depth."""
    if isinstance(model, pydantic.BaseModel):
        allowed = UNTYPED.get(type(model).__name__, set())
        yield from (f"{path}.{name}" for name in (model.__pydantic_extra__ or {}) if name not in allowed)
        for name in type(model).model_fields:
            yield from unknown(getattr(model, name), f"{path}.{name}")
    elif isinstance(model, list):
        for at, one in enumerate(model):
            yield from unknown(one, f"{path}[{at}]")


@cache
def _event_types() -> dict[str, type[pydantic.BaseModel]]:
    union = get_args(ResponseStreamEvent)[0]
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(union)}
