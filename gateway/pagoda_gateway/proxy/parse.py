"""Reads what routing needs of a request: the model, the conversation, and the text at the prompt's beginning. Pure.

The body is forwarded unchanged, and the daemon validates the rest. Whatever is not as expected here names no conversation and no text.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from pagoda_contracts.names import HEADER_CONTINUE
from pagoda_contracts.prefix import MAX_TEXT_HASHES, TEXT_CHUNK_BYTES, Scope, chat_text, text_hashes

from pagoda_gateway.requests.errors import BadRequest
from pagoda_gateway.routing.predict import BYTES_PER_TOKEN
from pagoda_gateway.routing.request import RoutingRequest

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_SESSION_HEADER: Final = "x-session-id"
# Larger ones go by load and by the session that they name: to read 16 MB of messages would hold up other requests for 50 ms.
_MAX_READ: Final = 2 << 20
# Of objects and lists, and of their keys: to read 2 MiB of tiny parts would hold up other requests for 0.17 s.
_MAX_PARTS: Final = 1 << 14
_MAX_KEYS: Final = 1 << 15
# Normalisation never makes text longer than three times; names end with the 64th chunk.
_MAX_TEXT: Final = 3 * MAX_TEXT_HASHES * TEXT_CHUNK_BYTES
_MAX_TURNS: Final = 4096
_NEVER: Final = "never"
_NONE: Final = msgspec.Raw(b"null")

Message = tuple[str, str]


class _Head(msgspec.Struct, frozen=True):
    """`model` picks the service. Other fields may be anything."""

    model: str
    prompt_cache_key: msgspec.Raw = _NONE
    session_id: msgspec.Raw = _NONE
    messages: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE
    prompt: msgspec.Raw = _NONE
    system: msgspec.Raw = _NONE
    instructions: msgspec.Raw = _NONE


_DECODER = msgspec.json.Decoder(_Head)


def routing_request(body: bytes, headers: Mapping[str, str], tenant: str) -> RoutingRequest:
    """Returns what routing knows of a request; BadRequest says what is wrong with its body."""
    head = _head(body)
    messages = _conversation(head) if _is_readable(body) else []
    text = chat_text(messages)
    names = text_hashes(Scope(tenant, head.model), text[:_MAX_TEXT]) if messages else []
    return RoutingRequest(
        head.model,
        tenant=tenant,
        prefix_hashes=tuple(names),
        session=_session(head, headers, tenant, messages),
        prompt_tokens=(len(text) or len(body)) // BYTES_PER_TOKEN,
    )


def _is_readable(body: bytes) -> bool:
    """Whether the text of a body can be read within 20 ms. Signs inside of texts are counted too, so the answer is "no" too often; such a
    request goes by load and by the session that it names."""
    return len(body) <= _MAX_READ and body.count(b"{") + body.count(b"[") <= _MAX_PARTS and body.count(b'":') <= _MAX_KEYS


def _head(body: bytes) -> _Head:
    try:
        parsed = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the request's body is not valid: {error}", "model" if "model" in str(error) else None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from error
    if not parsed.model:
        raise BadRequest("`model` must not be empty; GET /v1/models lists the names", "model")
    return parsed


def _session(head: _Head, headers: Mapping[str, str], tenant: str, messages: list[Message]) -> str:
    """Returns a key that is the same for all requests of a conversation, bound to the tenant: by the id that the client sends, else by what
    all its turns begin with. A first turn without an id is no conversation yet."""
    for given in (_id(head.prompt_cache_key), _id(head.session_id), headers.get(_SESSION_HEADER)):
        if given:
            return _key(tenant, "id", given)
    if not any(role == "assistant" for role, _ in messages):
        return ""
    first = next((at for at, (role, _) in enumerate(messages) if role == "user"), 0)
    return _key(tenant, "turns", chat_text(messages[: first + 1]))


def _key(tenant: str, *parts: str) -> str:
    """Parts are told apart by their lengths."""
    state = hashlib.blake2b(digest_size=16)
    for part in (tenant, *parts):
        data = part.encode(errors="replace")
        state.update(len(data).to_bytes(8, "big") + data)
    return state.hexdigest()


def _conversation(head: _Head) -> list[Message]:
    """Returns role and text of each message, in the order of the prompt, whichever API the request is of."""
    before = [("system", text) for raw in (head.system, head.instructions) if (text := _text(_value(raw)))]
    for raw in (head.messages, head.input, head.prompt):
        if messages := list(_messages(_value(raw))):
            return [*before, *messages]
    return before


def _messages(value: Any) -> Iterator[Message]:
    if isinstance(value, str):
        yield "user", value
    for one in value[:_MAX_TURNS] if isinstance(value, list) else ():
        if isinstance(one, dict) and isinstance(role := one.get("role", "user"), str):
            yield role, _text(one.get("content"))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = (part.get("text") for part in content[:_MAX_PARTS] if isinstance(part, dict)) if isinstance(content, list) else ()
    return "".join(text for text in parts if isinstance(text, str))


def _id(raw: msgspec.Raw) -> str:
    """Returns the id that a client sends, "" if it is no text. Nothing else is decoded: a list of 15 MB would hold up others for 1 s."""
    text = memoryview(raw)
    return str(_value(raw) or "") if bytes(text[:1]) == b'"' and len(text) <= _MAX_READ else ""


def _value(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def may_continue(headers: Mapping[str, str]) -> bool:
    """Returns whether the client lets its stream go on at another replica; BadRequest if the header says neither yes nor no."""
    given = headers.get(HEADER_CONTINUE)
    if given not in (None, _NEVER):
        raise BadRequest(f"{HEADER_CONTINUE} must be {_NEVER!r} or absent, got {given[:64]!r}", HEADER_CONTINUE)
    return given is None


def request_id(given: str | None) -> str:
    """Returns the client's id if it is short and plain, else a new one of 128 bits. It goes into headers and logs."""
    return given if given is not None and _SANE_ID.fullmatch(given) else uuid.uuid4().hex
