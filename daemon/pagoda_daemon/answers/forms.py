"""The forms in which models write reasoning and calls, by vLLM's names, and which form a model has. Pure data.

A form is read from what the model's chat template writes itself. A person may name another one (`--tool-call-parser`,
`--reasoning-parser`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pagoda_daemon.answers.events import AnswerParser
from pagoda_daemon.answers.json_calls import JsonCalls, JsonForm
from pagoda_daemon.answers.reasoning import ReasoningForm
from pagoda_daemon.answers.wishes import Wish


@dataclass(frozen=True)
class ToolForm:
    """`marks`: texts that the parser needs, also if they are special tokens. `json`: the form has a grammar, so calls can be enforced.
    `id_length`: characters of a call's id, if the template insists on a number."""

    name: str
    parser: Callable[[Wish], AnswerParser]
    marks: tuple[str, ...]
    json: JsonForm | None = None
    id_length: int | None = None

    def call_id(self, request_id: str, choice: int, index: int) -> str:
        """Returns the same id for the same call; clients hand it back with the result."""
        digest = hashlib.sha256(f"{request_id}/{choice}/{index}".encode()).hexdigest()
        return digest[: self.id_length] if self.id_length else f"call_{digest[:24]}"


def _json(name: str, form: JsonForm, id_length: int | None = None) -> ToolForm:
    return ToolForm(name, partial(JsonCalls, form), tuple(mark for mark in (form.begin, form.end) if mark), form, id_length)


TOOL_FORMS: Final = {
    form.name: form
    for form in (
        _json("hermes", JsonForm("<tool_call>", "</tool_call>", "\n", "arguments")),
        _json("llama3_json", JsonForm("", "", "; ", "parameters")),
        _json("mistral", JsonForm("[TOOL_CALLS]", "", ", ", "arguments", listed=True), id_length=9),
    )
}
REASONING_FORMS: Final = {
    form.name: form
    for form in (
        ReasoningForm("deepseek_r1", "<think>", "</think>", always=True),
        ReasoningForm("qwen3", "<think>", "</think>"),
    )
}


def tool_form_of(template: str) -> ToolForm | None:
    """Returns the form that a chat template teaches; None if it knows no tools, or none of these forms."""
    if "tools" not in template:
        return None
    for name, sign in (("hermes", "<tool_call>"), ("mistral", "[TOOL_CALLS]"), ("llama3_json", '"parameters"')):
        if sign in template:
            return TOOL_FORMS[name]
    return None


def reasoning_form_of(template: str) -> ReasoningForm | None:
    """Returns the form of the model's reasoning; None if its template has none."""
    return REASONING_FORMS["qwen3"] if "</think>" in template else None
