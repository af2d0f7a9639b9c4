"""How many tokens a request may take: an upper bound on its prompts, and what it asks of its answers. Pure; called by handlers.py.

The gateway has no tokenizer. Each token of a prompt stands for at least one byte, so a body has at most as many tokens as bytes. Tokens
that a template adds are fewer than the bytes of JSON around the text, except those of its first words; _TEMPLATE is for them. If a prompt
needs more all the same (text that normalisation makes longer), its replica says so before it computes anything.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from pagoda_gateway.limits.bounds import Wish
from pagoda_gateway.proxy.fields import Fields

# System texts that templates write by themselves have up to 200 tokens.
_TEMPLATE: Final = 256
_CONVERSATIONS: Final = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})
_ANSWERING: Final = _CONVERSATIONS | {"/v1/completions"}
_Field = Literal["max_completion_tokens", "max_tokens", "max_output_tokens"]
_FIELDS: Final[tuple[_Field, ...]] = ("max_completion_tokens", "max_tokens", "max_output_tokens")


def wish(path: str, fields: Fields, size: int) -> Wish:
    """Returns what a request may take whose body has so many bytes. What is no number counts as absent, and the replica refuses it."""
    if path == "/v1/embeddings":
        return Wish(size + _TEMPLATE, answer=0)
    if path not in _ANSWERING:
        return Wish(0, answer=0)
    asked = [(value, name) for name in _FIELDS if (value := _number(getattr(fields, name))) is not None]
    answer, field = max(asked, default=(None, "max_tokens"))
    answers = max(1, _number(fields.n) or 1, _number(fields.best_of) or 1)
    return Wish(size + _TEMPLATE, answer, answers, field, one_prompt=path in _CONVERSATIONS)


def _number(raw: msgspec.Raw) -> int | None:
    value: Any = msgspec.json.decode(raw) if len(memoryview(raw)) <= 20 else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
