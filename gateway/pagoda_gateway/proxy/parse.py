"""Reads the one field of a request's body that routing needs. The body is forwarded unchanged, and the daemon validates the rest."""

from __future__ import annotations

import re
import uuid

import msgspec

from pagoda_gateway.requests.errors import BadRequest

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Head(msgspec.Struct, frozen=True):
    """`model` picks the service."""

    model: str


_DECODER = msgspec.json.Decoder(Head)


def head(body: bytes) -> Head:
    """Parses the body. BadRequest says what is wrong with it."""
    try:
        parsed = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request's body is not valid: {error}", "model" if "model" in str(error) else None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from error
    if not parsed.model:
        raise BadRequest("`model` must not be empty; GET /v1/models lists the names", "model")
    return parsed


def request_id(given: str | None) -> str:
    """Returns the client's id if it is short and plain, else a new one of 128 bits. It goes into headers and logs."""
    return given if given is not None and _SANE_ID.fullmatch(given) else uuid.uuid4().hex
