"""The grammars of answers that may or must be calls, judged by the matcher that the workers use."""

import json

import pytest
from llguidance import LLTokenizer
from pagoda_daemon.answers.forms import TOOL_FORMS
from pagoda_daemon.answers.wishes import Wish
from pagoda_daemon.api.openai.requests import ChatRequest, parse
from pagoda_daemon.api.openai.tool_grammars import NO_MARKS, answer_grammar
from pagoda_daemon.api.openai.tools import Function, Tool, Toolbox
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.structured.compile import matcher_of

FORMATS = {name: form.layout for name, form in TOOL_FORMS.items() if not form.layout.single and form.layout.values is None}
BEGIN, SEP, END = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
BYTES = LLTokenizer("byte")
A = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"], "additionalProperties": False}
A |= {"$defs": {"a": {"type": "integer"}}, "x-guidance": {"whitespace_pattern": " *", "lenient": True}}
LOOSE = {"type": "object", "properties": {"a": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}}
PLAN = Grammar(
    "json_schema", json.dumps({"type": "object", "properties": {"plan": {"$ref": "#/$defs/p"}}, "$defs": {"p": {"type": "string"}}})
)


def box(parameters, **options):
    return Toolbox((Tool(type="function", function=Function(name="f", parameters=parameters)),), **options)


def called(form, arguments, name="f"):
    """As a model writes it."""
    call = f'{{"name": "{name}", "arguments": {arguments}}}'
    return {
        "hermes": f"<tool_call>\n{call}\n</tool_call>",
        "llama3_json": call.replace("arguments", "parameters"),
        "mistral": f"[TOOL_CALLS][{call}]",
        "granite": f"<|tool_call|>[{call}]",
        "phi4_mini_json": f"<|tool_call|>[{call}]<|/tool_call|>",
        "deepseek_v3": f"{BEGIN}function{SEP}{name}\n```json\n{arguments}\n```{END}",
        "deepseek_v31": f"{BEGIN}{name}{SEP}{arguments}{END}",
    }[form]


def follows(grammar, text):
    matcher = matcher_of(BYTES, grammar.kind, grammar.text)
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def allows(form, parameters, arguments):
    return follows(answer_grammar(box(parameters, must=True), FORMATS[form]), called(form, arguments))


@pytest.mark.parametrize("form", FORMATS)
def test_arguments_hold_one_blank_at_most_whatever_the_schema_says(form):
    assert allows(form, A, '{"a": 1}')
    assert not allows(form, A, '{"a":  1}')
    assert not allows(form, A, '{"a": "x"}')


@pytest.mark.parametrize("form", FORMATS)
def test_a_function_without_parameters_takes_an_empty_object_only(form):
    assert allows(form, None, "{}")
    assert not allows(form, None, '{"a": 1}')
    assert allows(form, {}, '{"a": 1}')


@pytest.mark.parametrize("form", FORMATS)
def test_an_answer_is_a_call_or_the_format_where_none_must_be(form):
    either = answer_grammar(box(A), FORMATS[form], NO_MARKS, PLAN)
    for text in (called(form, '{"a": 1}'), '{"plan": "x"}', "{}"):
        assert follows(either, text), text
    for text in (called(form, '{"a": "x"}', name="g"), "text", '{"plan": 1}', '{"plan":  "x"}'):
        assert not follows(either, text) or (form, text[:9]) == ("llama3_json", '{"name": '), text
    assert not follows(answer_grammar(box(A, must=True), FORMATS[form]), '{"plan": "x"}')


def test_any_object_beside_calls_without_marks_is_still_an_object():
    either = answer_grammar(box(A), FORMATS["llama3_json"], NO_MARKS, Grammar("json_schema", '{"type":"object"}'))
    assert follows(either, '{"name": "Bob", "n": [1, {"b": 2}]}')


def test_a_choice_may_stand_beside_marked_calls():
    either = answer_grammar(box(A), FORMATS["hermes"], NO_MARKS, Grammar("choice", '["yes", "no"]'))
    assert follows(either, "no")
    assert follows(either, called("hermes", '{"a": 1}'))


@pytest.mark.parametrize(("form", "kind"), [("hermes", "regex"), ("mistral", "grammar"), ("llama3_json", "choice")])
def test_formats_that_cannot_stand_beside_calls_are_refused_by_name(form, kind):
    with pytest.raises(BadRequest, match=f"the kind {kind}") as caught:
        answer_grammar(box(A), FORMATS[form], NO_MARKS, Grammar(kind, "[1]"))
    assert caught.value.param == "tools"


def chat(**fields):
    warnings = []
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse(json.dumps(body).encode(), ChatRequest, warnings), warnings


def tool(name, parameters=None, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}, **more}


NAMED = {"type": "function", "function": {"name": "g", "unheard": 1}, "unheard": 1}
PLACE = "tools[1].function.parameters.properties.a.oneOf"


@pytest.mark.parametrize(
    ("fields", "loosened"),
    [
        ({"tool_choice": "required"}, [PLACE]),
        ({"tool_choice": NAMED}, [PLACE]),
        ({"guided_json": {"type": "object"}}, [PLACE]),
        ({"guided_json": LOOSE}, ["guided_json.properties.a.oneOf", PLACE]),
        ({"guided_json": LOOSE, "tool_choice": "required"}, [PLACE]),
        ({"guided_json": LOOSE, "tool_choice": "none"}, ["guided_json.properties.a.oneOf"]),
        ({}, []),
    ],
)
def test_loosened_parameters_are_reported_where_they_bind_the_answer(fields, loosened):
    found = chat(tools=[tool("f"), tool("g", LOOSE)], **fields)[1]
    assert [path for path in found if not path.endswith("unheard")] == loosened


def test_a_keyword_that_cannot_be_followed_is_refused_where_it_binds_the_answer():
    tools = [tool("f"), tool("g", {"properties": {"a": {"not": {}}}})]
    assert chat(tools=tools)[0].box is not None
    with pytest.raises(BadRequest) as caught:
        chat(tools=tools, tool_choice=NAMED)
    assert caught.value.param == "tools[1].function.parameters.properties.a.not"


@pytest.mark.parametrize("name", ["files.read", "a" * 128, "A-b_9."])
def test_names_have_dots_and_128_characters(name):
    request, _ = chat(tools=[tool(name)], tool_choice={"type": "function", "function": {"name": name}})
    call = called("hermes", "{}", name)
    assert follows(answer_grammar(request.box, FORMATS["hermes"]), call)


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "ä", "a/b"])
def test_other_names_are_refused(name):
    with pytest.raises(BadRequest, match="1 to 128") as caught:
        chat(tools=[tool(name)])
    assert caught.value.param == "tools[0].function.name"


def test_fields_of_tools_and_calls_that_nobody_knows_are_ignored():
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}", "parsed": {}}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    request, _ = chat(messages=messages, tools=[tool("g", unheard=[1])], tool_choice=NAMED)
    assert request.box.for_template() == [{"type": "function", "function": {"name": "g"}}]
    assert request.turns()[1]["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}]


TYPED = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "n": {"type": "integer"}, "u": {"enum": ["c", "f"]}, "o": {"$ref": "#/$defs/o"}},
    "required": ["city", "n"],
    "$defs": {"o": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}},
}


def written(form, **values):
    """A call of `f` without JSON around its arguments."""
    if form == "pythonic":
        return f"[f({', '.join(f'{name}={value}' for name, value in values.items())})]"
    texts = {name: json.loads(value) if value.startswith('"') else value for name, value in values.items()}
    if form == "glm45":
        tags = "".join(f"<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n" for name, value in texts.items())
        return f"<tool_call>f\n{tags}</tool_call>"
    tags = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in texts.items())
    return f"<tool_call>\n<function=f>\n{tags}</function>\n</tool_call>"


@pytest.mark.parametrize("form", ["qwen3_coder", "glm45", "pythonic"])
def test_arguments_that_are_no_json_object_follow_their_schema_one_by_one(form):
    layout = TOOL_FORMS[form].layout
    good = [{"city": '"a < b"', "n": "3"}, {"city": '""', "n": "3", "u": '"c"', "o": '{"a": 1}'}, {"city": '"x"', "n": "3", "o": "{}"}]
    bad = [{"city": '"x"'}, {"city": '"x"', "n": "y"}, {"city": '"x"', "n": "3", "u": '"x"'}, {"city": '"x"', "n": "3", "o": '{"b": 1}'}]
    for options in ({"must": True}, {}):
        grammar = answer_grammar(Toolbox((Tool("function", Function("f", parameters=TYPED, strict=True)),), **options), layout)
        for values in good:
            assert follows(grammar, written(form, **values)), values
            parser = TOOL_FORMS[form].parser(Wish(parameters={"f": TYPED}))
            events = [*parser.push(written(form, **values)), *parser.finish()]
            assert json.loads("".join(event.text for event in events[1:])) == {name: json.loads(value) for name, value in values.items()}
        for values in bad:
            assert not follows(grammar, written(form, **values)), values
        assert follows(grammar, "text") is not options.get("must", False)
    assert follows(answer_grammar(box(None, must=True), layout), written(form))


@pytest.mark.parametrize(
    ("form", "name", "parameters", "param"),
    [
        ("qwen3_coder", "f", {"anyOf": [{"type": "object"}]}, "tools[0].function.parameters"),
        ("glm45", "f", {"type": "object", "properties": {"a<b": {}}}, "tools[0].function.parameters"),
        ("pythonic", "f", {"type": "object", "properties": {"a-b": {}}}, "tools[0].function.parameters"),
        ("pythonic", "f-g", None, "tools[0].function.name"),
    ],
)
def test_what_such_a_form_cannot_write_is_refused_by_name(form, name, parameters, param):
    with pytest.raises(BadRequest) as caught:
        answer_grammar(Toolbox((Tool("function", Function(name, parameters=parameters)),), must=True), TOOL_FORMS[form].layout)
    assert caught.value.param == param
