"""How models write calls: which of the three ways a chat template teaches, and the grammar that makes an answer nothing but calls. Pure.

hermes (Hermes, Qwen)  `<tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>`, one after the other
llama3_json (Llama 3)  `{"name": "f", "parameters": {…}}`, several with `;` between
mistral (Mistral)      `[TOOL_CALLS][{"name": "f", "arguments": {…}}, …]`
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import structs

from pagoda_daemon.api.openai.structured import checked, of_schema
from pagoda_daemon.api.openai.tools import Tool, Toolbox
from pagoda_daemon.nouns.errors import BadRequest
from pagoda_daemon.nouns.messages import Grammar
from pagoda_daemon.structured.limits import WHITESPACE
from pagoda_daemon.text.tokens import ModelText


@dataclass(frozen=True)
class ToolFormat:
    """`begin` and `end` stand around calls, `between` between two of them; both are empty where a call is the whole answer. `listed`: the
    calls are a JSON array. `id_length`: characters of a call's id, where a template insists."""

    name: str
    begin: str
    end: str
    between: str
    arguments: str
    listed: bool = False
    id_length: int | None = None

    def call_id(self, request_id: str, choice: int, index: int) -> str:
        """The same for the same call; clients hand it back with the result."""
        digest = hashlib.sha256(f"{request_id}/{choice}/{index}".encode()).hexdigest()
        return digest[: self.id_length] if self.id_length else f"call_{digest[:24]}"


FORMATS: Final = {
    form.name: form
    for form in (
        ToolFormat("hermes", "<tool_call>", "</tool_call>", "\n", "arguments"),
        ToolFormat("llama3_json", "", "", "; ", "parameters"),
        ToolFormat("mistral", "[TOOL_CALLS]", "", ", ", "arguments", listed=True, id_length=9),
    )
}


def detect(template: str) -> ToolFormat | None:
    """By what the template writes itself; None where it knows no tools, or none of these ways."""
    if "tools" not in template:
        return None
    for name, sign in (("hermes", "<tool_call>"), ("mistral", "[TOOL_CALLS]"), ("llama3_json", '"parameters"')):
        if sign in template:
            return FORMATS[name]
    return None


def tool_format(text: ModelText) -> ToolFormat:
    """BadRequest where this model's way to write calls is not known."""
    form = FORMATS.get(text.tool_parser or "") or detect(text.template)
    if form is None:
        raise BadRequest("this model's chat template has no tools in a way that is known here", "tools", "unsupported_parameter")
    return form


def marks_and_grammar(box: Toolbox, form: ToolFormat, text: ModelText) -> tuple[bool, Grammar | None]:
    """Whether the marks are special tokens, and what makes an answer nothing but calls where it must be."""
    begin, end = text.special_id(form.begin), text.special_id(form.end)
    grammar = structs.replace(calls_grammar(box, form, begin, end), eos=text.stop_ids, param="tools") if box.must else None
    return begin is not None or end is not None, grammar


def calls_grammar(box: Toolbox, form: ToolFormat, begin_id: int | None, end_id: int | None) -> Grammar:
    """Lark. The ids are those of the marks where the tokenizer has them as special tokens: these have no bytes that text could match."""
    begin, end = _mark(form.begin, begin_id), _mark(form.end, end_id)
    one = "(" + " | ".join(f"c{at}" for at in range(len(box.tools))) + ")"
    if form.listed:
        more = "" if box.single else f" ({_text(form.between)} {one})*"
        start = f"{begin} {_text('[')} {one}{more} {_text(']')}"
    else:
        call = f"{begin} {_text(NEWLINE)} {one} {_text(NEWLINE)} {end}" if form.begin else one
        start = call if box.single else f"{call} ({_text(form.between)} {call})*"
    rules = [f"start: {start}", *(_rules(at, tool, form) for at, tool in enumerate(box.tools))]
    return checked(Grammar("grammar", "\n".join(rules)), "tools")


NEWLINE: Final = "\n"
_SHAPING: Final = frozenset(("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"))


def _rules(at: int, tool: Tool, form: ToolFormat) -> str:
    """The parameters' schema is a document of its own, so that its `$ref`s find its `$defs`."""
    schema = tool.function.parameters or {}
    named = schema if schema.keys() & _SHAPING else {"type": "object", **schema}
    bounded = {**named, "x-guidance": {"whitespace_pattern": WHITESPACE}}  # a grammar in Lark takes no overrides
    head = _text(f'{{"name": {json.dumps(tool.function.name)}, "{form.arguments}": ')
    return f"c{at}: {head} a{at} {_text('}')}\na{at}: %json {of_schema(bounded, 'tools').text}"


def _mark(text: str, special: int | None) -> str:
    return f"<[{special}]>" if special is not None else _text(text) if text else ""


def _text(literal: str) -> str:
    return msgspec.json.encode(literal).decode()
