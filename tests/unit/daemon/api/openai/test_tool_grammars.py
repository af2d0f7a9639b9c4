"""The grammars of answers that may or must be calls, judged by the matcher that the workers use."""

import json

import pytest
from llguidance import LLTokenizer
from pagoda_daemon.answers.forms import TOOL_FORMS
from pagoda_daemon.api.openai.requests import ChatRequest, parse
from pagoda_daemon.api.openai.tool_grammars import answer_grammar
from pagoda_daemon.api.openai.tools import Function, Tool, Toolbox
from pagoda_daemon.nouns.errors import BadRequest
from pagoda_daemon.nouns.messages import Grammar
from pagoda_daemon.structured.compile import matcher_of

FORMATS = {name: form.json for name, form in TOOL_FORMS.items() if form.json}
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
    call = f'{{"name": "{name}", "{FORMATS[form].arguments}": {arguments}}}'
    return {"hermes": f"<tool_call>\n{call}\n</tool_call>", "llama3_json": call, "mistral": f"[TOOL_CALLS][{call}]"}[form]


def follows(grammar, text):
    matcher = matcher_of(BYTES, grammar.kind, grammar.text)
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def allows(form, parameters, arguments):
    return follows(answer_grammar(box(parameters, must=True), FORMATS[form], (None, None)), called(form, arguments))


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
    either = answer_grammar(box(A), FORMATS[form], (None, None), PLAN)
    for text in (called(form, '{"a": 1}'), '{"plan": "x"}', "{}"):
        assert follows(either, text), text
    for text in (called(form, '{"a": "x"}', name="g"), "text", '{"plan": 1}', '{"plan":  "x"}'):
        assert not follows(either, text) or (form, text[:9]) == ("llama3_json", '{"name": '), text
    assert not follows(answer_grammar(box(A, must=True), FORMATS[form], (None, None)), '{"plan": "x"}')


def test_any_object_beside_calls_without_marks_is_still_an_object():
    either = answer_grammar(box(A), FORMATS["llama3_json"], (None, None), Grammar("json_schema", '{"type":"object"}'))
    assert follows(either, '{"name": "Bob", "n": [1, {"b": 2}]}')


def test_a_choice_may_stand_beside_marked_calls():
    either = answer_grammar(box(A), FORMATS["hermes"], (None, None), Grammar("choice", '["yes", "no"]'))
    assert follows(either, "no")
    assert follows(either, called("hermes", '{"a": 1}'))


@pytest.mark.parametrize(("form", "kind"), [("hermes", "regex"), ("mistral", "grammar"), ("llama3_json", "choice")])
def test_formats_that_cannot_stand_beside_calls_are_refused_by_name(form, kind):
    with pytest.raises(BadRequest, match=f"the kind {kind}") as caught:
        answer_grammar(box(A), FORMATS[form], (None, None), Grammar(kind, "[1]"))
    assert caught.value.param == "tools"


def chat(**fields):
    told = []
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return parse(json.dumps(body).encode(), ChatRequest, told), told


def tool(name, parameters=None, **more):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}, **more}


NAMED = {"type": "function", "function": {"name": "g", "unheard": 1}, "unheard": 1}
PLACE = "tools[1].function.parameters.properties.a.oneOf"


@pytest.mark.parametrize(
    ("fields", "told"),
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
def test_loosened_parameters_are_told_where_they_bind_the_answer(fields, told):
    found = chat(tools=[tool("f"), tool("g", LOOSE)], **fields)[1]
    assert [path for path in found if not path.endswith("unheard")] == told


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
    assert follows(answer_grammar(request.box, FORMATS["hermes"], (None, None)), call)


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
