"""Which API key a request shows: `authorization: Bearer KEY` as OpenAI's clients send it, or `x-api-key: KEY` as Anthropic's do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

API_KEY: Final = "x-api-key"
_AUTHORIZATION: Final = "authorization"
_SCHEME: Final = "bearer"


def shown_key(headers: Mapping[str, str]) -> str:
    """Returns the key's text, "" without one. `authorization` counts first: a client that sends both means that one."""
    scheme, _, text = headers.get(_AUTHORIZATION, "").strip().partition(" ")
    if scheme.lower() == _SCHEME and (key := text.strip()):
        return key
    return headers.get(API_KEY, "").strip()
