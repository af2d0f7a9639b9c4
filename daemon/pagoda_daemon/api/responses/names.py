"""How a chat's fields are called in a response: for refusals and notes that come from where only the chat is known. Pure."""

from __future__ import annotations

import re
from typing import Final

from pagoda_daemon.core.errors import BadRequest

_WORDS: Final = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.allowed_tools": "tool_choice",
    "messages": "input",
}
# The longest first; what is in quotes is a client's own words.
_KNOWN: Final = re.compile(
    r"""(?P<quoted>(?<!\w)'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"|(?P<tool>\btools\[\d+\])\.function\b"
    rf"|\b(?P<word>{'|'.join(map(re.escape, _WORDS))})\b"
)


def renamed(text: str) -> str:
    """A name, or a sentence with names in it."""
    return _KNOWN.sub(lambda found: found["tool"] or _WORDS.get(found["word"] or "", found[0]), text)


def refusal(error: BadRequest) -> BadRequest:
    """The same refusal in the words of this API."""
    param = "input" if error.param == "prompt" else error.param
    return BadRequest(renamed(str(error)), renamed(param) if param else None, error.code)
