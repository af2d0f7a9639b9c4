"""How models write calls: which of the three ways a chat template teaches, and the grammar that makes an answer nothing but calls. Pure.

hermes (Hermes, Qwen)  `<tool_call>\n{"name": "f", "arguments": {…}}\n</tool_call>`, one after the other
llama3_json (Llama 3)  `{"name": "f", "parameters": {…}}`, several with `;` between
mistral (Mistral)      `[TOOL_CALLS][{"name": "f", "arguments": {…}}, …]`
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import structs

from pagoda_daemon.api.openai.structured import checked, fit
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.nouns.errors import BadRequest
from pagoda_daemon.nouns.messages import Grammar
from pagoda_daemon.structured.limits import JSON_OPTIONS
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


def marks_and_grammar(box: Toolbox, form: ToolFormat, text: ModelText, wished: Grammar | None) -> tuple[bool, Grammar | None]:
    """Whether the marks are special tokens, and what makes an answer calls, or the format that is `wished` where none must be."""
    begin, end = text.special_id(form.begin), text.special_id(form.end)
    grammar = answer_grammar(box, form, (begin, end), None if box.must else wished) if box.must or wished else None
    return begin is not None or end is not None, structs.replace(grammar, eos=text.stop_ids, param="tools") if grammar else None


def answer_grammar(box: Toolbox, form: ToolFormat, ids: tuple[int | None, int | None], other: Grammar | None = None) -> Grammar:
    """Nothing but calls, or else `other`. The ids are those of the marks, if the tokenizer has them as special tokens: such tokens have no
    bytes that text could match."""
    if other is not None and not form.begin:
        return _json_or_call(box, form, other)
    rules = [f"start: calls{' | other' if other else ''}", f"calls: {_calls(box, form, ids)}"]
    rules += [_rules(at, box, form) for at in range(len(box.tools))]
    if other is not None:
        rules.append(f"other: {_other(other)}")
    return checked(Grammar("grammar", "\n".join(rules)), "tools")


def _calls(box: Toolbox, form: ToolFormat, ids: tuple[int | None, int | None]) -> str:
    begin, end = _mark(form.begin, ids[0]), _mark(form.end, ids[1])
    one = "(" + " | ".join(f"c{at}" for at in range(len(box.tools))) + ")"
    if form.listed:
        more = "" if box.single else f" ({_text(form.between)} {one})*"
        return f"{begin} {_text('[')} {one}{more} {_text(']')}"
    call = f"{begin} {_text(NEWLINE)} {one} {_text(NEWLINE)} {end}" if form.begin else one
    return call if box.single else f"{call} ({_text(form.between)} {call})*"


NEWLINE: Final = "\n"


def _rules(at: int, box: Toolbox, form: ToolFormat) -> str:
    """The parameters' schema is a document of its own, so that its `$ref`s find its `$defs`."""
    head = _text(f'{{"name": {json.dumps(box.tools[at].function.name)}, "{form.arguments}": ')
    return f"c{at}: {head} a{at} {_text('}')}\na{at}: {_json(box.arguments(at).schema)}"


def _json(schema: dict[str, Any]) -> str:
    """A grammar in Lark takes no options; a schema in it does."""
    return f"%json {_text({**schema, 'x-guidance': JSON_OPTIONS})}"


def _other(wished: Grammar) -> str:
    if wished.kind == "json_schema":
        return _json(json.loads(wished.text))
    if wished.kind == "choice":
        return " | ".join(_text(choice) for choice in json.loads(wished.text))
    raise _not_beside_tools(wished)


def _json_or_call(box: Toolbox, form: ToolFormat, other: Grammar) -> Grammar:
    """Without marks both are JSON, and the library cannot tell them apart but as branches of one schema."""
    if other.kind != "json_schema":
        raise _not_beside_tools(other)
    branches: list[dict[str, Any]] = [{"$ref": "#/$defs/other"}]
    definitions = {"other": fit(other.text, "response_format", "#/$defs/other").schema}
    for at, tool in enumerate(box.tools):
        definitions[f"a{at}"] = box.arguments(at, f"#/$defs/a{at}").schema
        call = {"name": {"const": tool.function.name}, form.arguments: {"$ref": f"#/$defs/a{at}"}}
        branches.append({"type": "object", "properties": call, "required": [*call], "additionalProperties": False})
    return checked(Grammar("json_schema", _text({"anyOf": branches, "$defs": definitions})), "tools")


def _not_beside_tools(wished: Grammar) -> BadRequest:
    return BadRequest(
        f"tools with tool_choice auto and a format of the kind {wished.kind} exclude each other; give the format as a JSON schema, "
        'or tool_choice "none" or "required"',
        "tools",
    )


def _mark(text: str, special: int | None) -> str:
    return f"<[{special}]>" if special is not None else _text(text) if text else ""


def _text(literal: Any) -> str:
    return msgspec.json.encode(literal).decode()
