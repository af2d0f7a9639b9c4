"""Fields: what the gateway needs of a request's body, read in one pass. Pure; called by handlers.py and extproc/session.py.

parse.py makes of it what routing knows, wish.py how many tokens the request may take.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pagoda_gateway.requests.errors import BadRequest

_NONE: Final = msgspec.Raw(b"null")


class Fields(msgspec.Struct, frozen=True):
    """`model` picks the service. Other fields may be anything."""

    model: str
    prompt_cache_key: msgspec.Raw = _NONE
    session_id: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE
    service_tier: msgspec.Raw = _NONE
    stream: msgspec.Raw = _NONE
    max_completion_tokens: msgspec.Raw = _NONE
    max_tokens: msgspec.Raw = _NONE
    max_output_tokens: msgspec.Raw = _NONE
    n: msgspec.Raw = _NONE
    best_of: msgspec.Raw = _NONE


_DECODER: Final = msgspec.json.Decoder(Fields)


def fields_of(body: bytes) -> Fields:
    """Returns the fields; BadRequest says what is wrong with the body."""
    try:
        parsed = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request's body is not valid: {error}", "model" if "model" in str(error) else None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from error
    if not parsed.model:
        raise BadRequest("`model` must not be empty; GET /v1/models lists the names", "model")
    return parsed
