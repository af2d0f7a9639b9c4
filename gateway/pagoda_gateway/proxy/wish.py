"""How many tokens a request may take: an upper bound on its prompts, and what it asks of its answers. Pure; called by handlers.py.

The gateway has no tokenizer. Each token of a prompt stands for at least one byte, so a body has at most as many tokens as bytes. Tokens
that a template adds are fewer than the bytes of JSON around the text, except those of its first words; _TEMPLATE is for them. If a prompt
needs more all the same (text that normalisation makes longer), its replica says so before it computes anything.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from pagoda_gateway.limits.bounds import Wish

# System texts that templates write by themselves have up to 200 tokens.
_TEMPLATE: Final = 256
_NONE: Final = msgspec.Raw(b"null")
_CONVERSATIONS: Final = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})
_ANSWERING: Final = _CONVERSATIONS | {"/v1/completions"}
_Field = Literal["max_completion_tokens", "max_tokens", "max_output_tokens"]
_FIELDS: Final[tuple[_Field, ...]] = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class _Head(msgspec.Struct, frozen=True):
    max_completion_tokens: msgspec.Raw = _NONE
    max_tokens: msgspec.Raw = _NONE
    max_output_tokens: msgspec.Raw = _NONE
    n: msgspec.Raw = _NONE
    best_of: msgspec.Raw = _NONE


_DECODER: Final = msgspec.json.Decoder(_Head)


def wish(path: str, body: bytes) -> Wish:
    """Returns what a request may take. The body is JSON; fields that are not numbers count as absent, and the replica refuses them."""
    if path == "/v1/embeddings":
        return Wish(len(body) + _TEMPLATE, answer=0)
    if path not in _ANSWERING:
        return Wish(0, answer=0)
    head = _DECODER.decode(body)
    asked = [(value, name) for name in _FIELDS if (value := _number(getattr(head, name))) is not None]
    answer, field = max(asked, default=(None, "max_tokens"))
    answers = max(1, _number(head.n) or 1, _number(head.best_of) or 1)
    return Wish(len(body) + _TEMPLATE, answer, answers, field, one_prompt=path in _CONVERSATIONS)


def _number(raw: msgspec.Raw) -> int | None:
    value: Any = msgspec.json.decode(raw) if len(memoryview(raw)) <= 20 else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
