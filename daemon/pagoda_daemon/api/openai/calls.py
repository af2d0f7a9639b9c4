"""What a client reads of tool calls: whole, and in the parts that a stream brings. Types only; `replies` and `chat_replies` use them."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType


class FunctionCall(msgspec.Struct, frozen=True):
    """Which function the model calls, and with what: JSON text, valid as far as the model writes it so."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    """A call of one of the request's tools."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The name comes first and whole, the arguments in pieces."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to call `index`; the first one of a call names it."""

    index: int
    function: FunctionPart
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
