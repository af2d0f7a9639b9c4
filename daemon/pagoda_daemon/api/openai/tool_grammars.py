"""The grammar of an answer that must think before it has a format, that must be calls, or whose calls must follow their schemas. Pure.

`answers/forms.py` has the forms. All is one grammar in Lark for the engine: reasoning up to its mark is free, then the answer is bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pagoda_daemon.answers.harmony import CHANNEL, MESSAGE, START
from pagoda_daemon.answers.layouts import NAME, Layout, Values
from pagoda_daemon.answers.reasoning import ReasoningForm
from pagoda_daemon.answers.values import types_of
from pagoda_daemon.api.openai.structured import checked, fit
from pagoda_daemon.api.openai.tools import Toolbox
from pagoda_daemon.core.errors import BadRequest, shown
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.structured.limits import JSON_OPTIONS

_FREE: Final = "/(?s:.*)/"
_SLASH: Final = re.compile(r"(?<!\\)((?:\\\\)*)/")
_ESCAPED_SLASH: Final = r"\1\\/"
_NEWLINE: Final = r"\n"
_GBNF: Final = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


@dataclass(frozen=True)
class Marks:
    """Special tokens have no bytes that text could match, so a grammar names them by their ids. `found`: those among the forms' marks."""

    found: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, marks: Sequence[str], mark_id: Callable[[str], int | None]) -> Marks:
        return cls(tuple((mark, token) for mark in marks if (token := mark_id(mark)) is not None))

    def written(self, text: str) -> str:
        """`text` in Lark."""
        ids = dict(self.found)
        parts = re.split(f"({'|'.join(map(re.escape, ids))})", text) if ids else [text]
        return " ".join(f"<[{ids[part]}]>" if part in ids else quoted(part) for part in parts if part)

    def special(self, mark: str) -> bool:
        return any(mark.startswith(token) for token, _ in self.found)

    def up_to(self, rule: str, ends: Sequence[str]) -> str:
        """A rule for free text up to the first of `ends`."""
        if self.special(ends[0]):
            return f"{rule}: {_FREE} {self.written(ends[0])}"
        return f"{rule}[lazy]: /(?s:.*)({'|'.join(map(_escaped, ends))})/"

    def without(self, rule: str, mark: str) -> str:
        """A rule for free text in which `mark` does not occur; text cannot match special tokens anyway."""
        return f"{rule}: {_FREE}" if self.special(mark) else f"{rule}: {_FREE} & ~/(?s:.*){_escaped(mark)}(?s:.*)/"


NO_MARKS: Final = Marks()


def answer_grammar(box: Toolbox, layout: Layout, marks: Marks = NO_MARKS, other: Grammar | None = None) -> Grammar:
    """Nothing but calls, or else `other`. If neither is asked for: any text, with calls that follow the schemas of strict tools."""
    if other is not None and not layout.mark and layout.values is None and not box.must:
        return _json_or_call(box, other)
    if box.must or other is not None:
        rules = [f"start: calls{' | other' if other and not box.must else ''}", f"calls: {_calls(box, layout, marks)}"]
        rules += [f"other: {_other(other)}"] if other and not box.must else []
    else:
        rules = _text_and_calls(box, layout, marks)
    rules += _arguments(box, layout, marks, bound=other is not None)
    return checked(Grammar("grammar", "\n".join(rules)), "tools")


def after_reasoning(form: ReasoningForm, grammar: Grammar, marks: Marks, *, opened: bool) -> Grammar:
    """Reasoning, then what `grammar` binds. `opened`: the prompt has the first mark; else the answer thinks if it writes that mark."""
    think = "thought" if opened else f"(/[ \\n]*/ {marks.written(form.begins[0])} thought)?"
    rules = [f"start: {think} body", marks.up_to("thought", form.ends), f"body: {_body(grammar)}"]
    return msgspec.structs.replace(checked(Grammar("grammar", "\n".join(rules)), grammar.param), param=grammar.param)


def harmony_grammar(box: Toolbox | None, layout: Layout | None, marks: Marks, wished: Grammar | None) -> Grammar:
    """GPT-OSS's: the analysis, which may be absent, then a call, or the last message with the text that is wished."""
    head, final = marks.written(f"{CHANNEL}analysis{MESSAGE}"), marks.written(f"{CHANNEL}final{MESSAGE}")
    must = box is not None and box.must
    parts = ([] if box is None or layout is None else ["calls"]) + ([] if must else ["final"])
    rules = [f"start: ({head} thought {marks.written(f'{START}assistant')})? ({' | '.join(parts)})", marks.up_to("thought", ("<|end|>",))]
    if box is not None and layout is not None:
        rules.append(f"calls: {_calls(box, layout, marks)}")
        rules += _arguments(box, layout, marks, bound=wished is not None)
    if not must:
        rules += [f"final: {final} body", f"body: {_FREE if wished is None else _body(wished)}"]
    param = wished.param if wished is not None and box is None else "tools"
    return msgspec.structs.replace(checked(Grammar("grammar", "\n".join(rules)), param), param=param)


def _calls(box: Toolbox, layout: Layout, marks: Marks) -> str:
    call = _one(box, layout, marks, "")
    more = "" if box.single or layout.single else f" ({marks.written(layout.between)} {call})*"
    return f"{marks.written(layout.begin)} {call}{more} {marks.written(layout.end)}"


def _one(box: Toolbox, layout: Layout, marks: Marks, begun: str) -> str:
    """One call of any tool; `begun` of it is written already."""
    heads = (layout.head_of(tool.function.name).removeprefix(begun) for tool in box.tools)
    return "(" + " | ".join(f"{marks.written(head)} a{at} {marks.written(layout.tail)}" for at, head in enumerate(heads)) + ")"


def _text_and_calls(box: Toolbox, layout: Layout, marks: Marks) -> list[str]:
    """Text in which calls may stand, each behind the mark; without a mark the answer is calls or begins with no brace."""
    if not layout.mark:
        bracket = _escaped(layout.begin[:1] or layout.head[:1])
        return [f"start: calls | /[ \\n]*([^ \\n{bracket}](?s:.*))?/", f"calls: {_calls(box, layout, marks)}"]
    several = not box.single
    if layout.begin:
        call = _one(box, layout, marks, "")
        more = f" ({marks.written(layout.between)} {call})*" if several else ""
        group, several = f"{marks.written(layout.begin.removeprefix(layout.mark))} {call}{more} {marks.written(layout.end)}", False
    else:
        group = _one(box, layout, marks, layout.mark)
    start = f"start: (before {group}){'*' if several else '?'} tail"
    return [start, marks.up_to("before", (layout.mark,)), "tail: TAIL", marks.without("TAIL", layout.mark)]


def _arguments(box: Toolbox, layout: Layout, marks: Marks, *, bound: bool) -> list[str]:
    """A rule for each tool's arguments. Of calls that the model chose itself, only a strict tool's JSON is bound."""
    rules = []
    for at, tool in enumerate(box.tools):
        if layout.values is not None:
            rules += _values(box, at, layout.values, marks)
        else:
            follows = box.must or bound or tool.function.strict
            rules.append(f"a{at}: {_json(box.arguments(at).schema if follows else {'type': 'object'})}")
    return rules


def _values(box: Toolbox, at: int, values: Values, marks: Marks) -> list[str]:
    """Arguments one by one, those that are required first."""
    schema = box.arguments(at).schema
    _check_values(box, at, values, schema)
    properties = schema.get("properties", {})
    required = [name for name in schema.get("required", ()) if name in properties]
    optional = [name for name in properties if name not in required]
    names = {name: f"a{at}v{number}" for number, name in enumerate((*required, *optional))}
    between = marks.written(values.between)
    more = [f"({between} {names[name]})?" for name in optional]
    if required:
        rule = " ".join([f" {between} ".join(names[name] for name in required), *more])
    else:
        rule = " | ".join([*(" ".join([names[name], *more[number + 1 :]]) for number, name in enumerate(optional)), '""'])
    return [f"a{at}: {rule}", *(one for name, rule in names.items() for one in _value(schema, name, rule, values, marks))]


def _check_values(box: Toolbox, at: int, values: Values, schema: dict[str, Any]) -> None:
    """BadRequest names what no such list can follow, or cannot write."""
    where, called = f"tools[{box.place(at)}].function", box.tools[at].function.name
    if schema.keys() & {"$ref", "anyOf", "oneOf", "allOf"} or schema.get("type", "object") != "object":
        said = f"{where}.parameters cannot be enforced for this model; they must be an object with properties"
        raise BadRequest(said, f"{where}.parameters", "unsupported_parameter")
    if not values.text and not all(values.name.fullmatch(part) for part in called.split(".")):
        raise BadRequest(f"{where}.name: this model cannot write the name {shown(called)}", f"{where}.name", "unsupported_parameter")
    odd = next((name for name in schema.get("properties", {}) if not values.name.fullmatch(name)), None)
    if odd is not None:
        said = f"{where}.parameters: this model cannot write the name {shown(odd)}"
        raise BadRequest(said, f"{where}.parameters", "unsupported_parameter")


def _value(root: dict[str, Any], name: str, rule: str, values: Values, marks: Marks) -> list[str]:
    """A string that is written as it is ends where its tag does: of its schema only the choices are followed."""
    before, after, schema = marks.written(values.before.replace(NAME, name)), marks.written(values.after), root["properties"][name]
    kinds = types_of(root, name)
    if not values.text or "string" not in kinds:
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        return [f"{rule}: {before} {_json({**shared, **(schema if isinstance(schema, dict) else {})})} {after}"]
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else None) if isinstance(schema, dict) else None
    if choices and all(isinstance(choice, str) for choice in choices):
        return [f"{rule}: {before} ({' | '.join(marks.written(choice) or quoted(choice) for choice in choices)}) {after}"]
    return [f"{rule}: {before} {rule}t", marks.up_to(f"{rule}t", (values.after,))]


def _json(schema: Any) -> str:
    """A grammar in Lark takes no options; a schema in it does. It is a document of its own, so that its `$ref`s find its `$defs`."""
    return f"%json {quoted({**({} if schema is True else schema), 'x-guidance': JSON_OPTIONS})}"


def _other(wished: Grammar) -> str:
    if wished.kind in ("json_schema", "choice"):
        return _body(wished)
    raise _not_beside_tools(wished)


def _body(wished: Grammar) -> str:
    """A grammar within another one."""
    match wished.kind:
        case "json_schema":
            return _json(json.loads(wished.text))
        case "choice":
            return " | ".join(quoted(choice) for choice in json.loads(wished.text))
        case "regex":
            return f"/{_SLASH.sub(_ESCAPED_SLASH, wished.text)}/".replace("\n", _NEWLINE)
        case "grammar":
            if _GBNF.search(wished.text):
                said = f"{wished.param} is in GBNF, and this model thinks before it answers; write the grammar in Lark"
                raise BadRequest(said, wished.param, "invalid_grammar")
            return f"%lark {{\n{wished.text}\n}}"


def _json_or_call(box: Toolbox, other: Grammar) -> Grammar:
    """Without marks both are JSON, and the library cannot tell them apart but as branches of one schema."""
    if other.kind != "json_schema":
        raise _not_beside_tools(other)
    branches: list[dict[str, Any]] = [{"$ref": "#/$defs/other"}]
    definitions = {"other": fit(other.text, "response_format", "#/$defs/other").schema}
    for at, tool in enumerate(box.tools):
        definitions[f"a{at}"] = box.arguments(at, f"#/$defs/a{at}").schema
        call = {"name": {"const": tool.function.name}, "parameters": {"$ref": f"#/$defs/a{at}"}}
        branches.append({"type": "object", "properties": call, "required": [*call], "additionalProperties": False})
    return checked(Grammar("json_schema", quoted({"anyOf": branches, "$defs": definitions})), "tools")


def _not_beside_tools(wished: Grammar) -> BadRequest:
    return BadRequest(
        f"tools with tool_choice auto and a format of the kind {wished.kind} exclude each other; give the format as a JSON schema, "
        'or tool_choice "none" or "required"',
        "tools",
    )


def _escaped(text: str) -> str:
    """A part of a regular expression in Lark."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", _NEWLINE).replace(r"\ ", " ")


def quoted(literal: Any) -> str:
    return msgspec.json.encode(literal).decode()
