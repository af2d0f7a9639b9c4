"""Makes of a request what routing needs: the model, the conversation, and the text at the prompt's beginning. Pure.

The body is forwarded unchanged, and the daemon validates the rest. Whatever is not as expected here names no conversation and no text.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
from pagoda_contracts.names import HEADER_CONTINUE
from pagoda_contracts.prefix import MAX_TEXT_HASHES, TEXT_CHUNK_BYTES, Scope, chat_text, text_hashes

from pagoda_gateway.proxy.fields import Fields
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

Message = tuple[str, str]


def routing_request(fields: Fields, body: bytes, headers: Mapping[str, str], tenant: str) -> RoutingRequest:
    """Returns what routing knows of a request with this body and these fields of it."""
    messages = _conversation(fields) if _is_readable(body) else []
    text = chat_text(messages)
    names = text_hashes(Scope(tenant, fields.model), text[:_MAX_TEXT]) if messages else []
    return RoutingRequest(
        fields.model,
        tenant=tenant,
        prefix_hashes=tuple(names),
        session=_session(fields, headers, tenant, messages),
        prompt_tokens=(len(text) or len(body)) // BYTES_PER_TOKEN,
        tier=_tier(fields),
        stream=bytes(memoryview(fields.stream)) == b"true",
    )


def _is_readable(body: bytes) -> bool:
    """Whether the text of a body can be read within 20 ms. Signs inside of texts are counted too, so the answer is "no" too often; such a
    request goes by load and by the session that it names."""
    return len(body) <= _MAX_READ and body.count(b"{") + body.count(b"[") <= _MAX_PARTS and body.count(b'":') <= _MAX_KEYS


def _session(fields: Fields, headers: Mapping[str, str], tenant: str, messages: list[Message]) -> str:
    """Returns a key that is the same for all requests of a conversation, bound to the tenant: by the id that the client sends, else by what
    all its turns begin with. A first turn without an id is no conversation yet."""
    for given in (_id(fields.prompt_cache_key), _id(fields.session_id), headers.get(_SESSION_HEADER)):
        if given:
            return _key(tenant, "id", given)
    if not any(role == "assistant" for role, _ in messages):
        return ""
    first = next((at for at, (role, _) in enumerate(messages) if role == "user"), 0)
    return _key(tenant, "turns", chat_text(messages[: first + 1]))


def _tier(fields: Fields) -> Literal["interactive", "batch"]:
    """OpenAI's `flex`: cheaper, and it may wait or be refused when others do not."""
    return "batch" if bytes(memoryview(fields.service_tier)) == b'"flex"' else "interactive"


def _key(tenant: str, *parts: str) -> str:
    """Parts are told apart by their lengths."""
    state = hashlib.blake2b(digest_size=16)
    for part in (tenant, *parts):
        data = part.encode(errors="replace")
        state.update(len(data).to_bytes(8, "big") + data)
    return state.hexdigest()


def _conversation(fields: Fields) -> list[Message]:
    """Returns role and text of each message, in the order of the prompt, whichever API the request is of."""
    before = [("system", text) for raw in (fields.system, fields.instructions) if (text := _text(_value(raw)))]
    for raw in (fields.messages, fields.input, fields.prompt):
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
