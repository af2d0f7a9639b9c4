"""The grammar that makes an answer nothing but calls, or else text of a format. Pure; `answers/forms.py` has the forms of calls."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from pagoda_daemon.answers.json_calls import JsonForm
from pagoda_daemon.api.openai.structured import checked, fit
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.nouns.errors import BadRequest
from pagoda_daemon.nouns.messages import Grammar
from pagoda_daemon.structured.limits import JSON_OPTIONS

NEWLINE: Final = "\n"


def answer_grammar(box: Toolbox, form: JsonForm, ids: tuple[int | None, int | None], other: Grammar | None = None) -> Grammar:
    """Nothing but calls, or else `other`. The ids are those of the marks, if the tokenizer has them as special tokens: such tokens have no
    bytes that text could match."""
    if other is not None and not form.begin:
        return _json_or_call(box, form, other)
    rules = [f"start: calls{' | other' if other else ''}", f"calls: {_calls(box, form, ids)}"]
    rules += [_rules(at, box, form) for at in range(len(box.tools))]
    if other is not None:
        rules.append(f"other: {_other(other)}")
    return checked(Grammar("grammar", "\n".join(rules)), "tools")


def _calls(box: Toolbox, form: JsonForm, ids: tuple[int | None, int | None]) -> str:
    begin, end = _mark(form.begin, ids[0]), _mark(form.end, ids[1])
    one = "(" + " | ".join(f"c{at}" for at in range(len(box.tools))) + ")"
    if form.listed:
        more = "" if box.single else f" ({_text(form.between)} {one})*"
        return f"{begin} {_text('[')} {one}{more} {_text(']')}"
    call = f"{begin} {_text(NEWLINE)} {one} {_text(NEWLINE)} {end}" if form.begin else one
    return call if box.single else f"{call} ({_text(form.between)} {call})*"


def _rules(at: int, box: Toolbox, form: JsonForm) -> str:
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


def _json_or_call(box: Toolbox, form: JsonForm, other: Grammar) -> Grammar:
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
