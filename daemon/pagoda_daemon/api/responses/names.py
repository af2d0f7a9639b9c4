"""How a chat's fields are called in a response: for refusals and notes that come from where only the chat is known. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pagoda_daemon.nouns.errors import BadRequest

# The longest first; what is in quotes is a client's own words.
_KNOWN: Final = re.compile(
    r"""(?P<quoted>(?<!\w)'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"|\btools\[(?P<tool>\d+)\](?:\.function\b)?"
    r"|\b(?P<word>response_format\.json_schema|response_format|max_completion_tokens|reasoning_effort|messages)\b"
)
_WORDS: Final = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "messages": "input",
}


def renamed(text: str, kept: Sequence[int]) -> str:
    """A name, or a sentence with names in it. `kept`: which of the request's tools the chat has."""

    def own(found: re.Match[str]) -> str:
        if found["word"]:
            return _WORDS[found["word"]]
        if found["tool"]:
            at = int(found["tool"])
            return f"tools[{kept[at] if at < len(kept) else at}]"
        return found[0]

    return _KNOWN.sub(own, text)


def refusal(error: BadRequest, kept: Sequence[int]) -> BadRequest:
    """The same refusal in the words of this API."""
    param = "input" if error.param == "prompt" else error.param
    return BadRequest(renamed(str(error), kept), renamed(param, kept) if param else None, error.code)
