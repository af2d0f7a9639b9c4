"""response_format, structured_outputs and guided_*: what becomes a grammar, and what is refused before any worker sees it."""

import json

import pytest
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest, parse
from pagoda_daemon.api.openai.structured import grammar_of
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.structured.limits import MAX_BYTES, MAX_DEPTH

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
EOS = (7,)


def grammar(**changes):
    return grammar_of(parse(json.dumps({**CHAT, **changes}).encode(), ChatRequest, []), EOS)


def refusal(**changes):
    with pytest.raises(BadRequest) as caught:
        grammar(**changes)
    return caught.value


def nested(levels):
    schema = True
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
            "json_schema",
            SCHEMA,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a","b"]'),
        ({"structured_outputs": {"grammar": "start: A"}}, "grammar", "start: A"),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a"]}, "choice", '["a"]'),
        ({"guided_grammar": "start: A"}, "grammar", "start: A"),
    ],
)
def test_every_way_to_ask_becomes_one_grammar(changes, kind, text):
    found = grammar(**changes)
    assert (found.kind, found.eos) == (kind, EOS)
    assert found.text == text if isinstance(text, str) else json.loads(found.text) == text


@pytest.mark.parametrize("changes", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"guided_json": None}])
def test_a_request_for_nothing_special_gets_any_text(changes):
    assert grammar(**changes) is None


def test_completions_take_them_too():
    request = parse(json.dumps({"model": "m", "prompt": "p", "structured_outputs": {"regex": "a"}}).encode(), CompletionRequest, [])
    assert grammar_of(request, ()) == Grammar("regex", "a", param="structured_outputs.regex")


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
        ({"response_format": {"type": "json_schema"}}, "json_schema", "json_schema is required"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "schema", "schema is required"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format", "guided_regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.regex", "structured_outputs.choice"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not JSON"),
        ({"structured_outputs": {"json": "3"}}, "structured_outputs.json", "must be a JSON object"),
        ({"guided_choice": []}, "guided_choice", "at least one"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "none of them empty"),
        ({"guided_regex": " "}, "guided_regex", "empty"),
        ({"guided_regex": "a" * (MAX_BYTES + 1)}, "guided_regex", str(MAX_BYTES)),
        ({"guided_json": {"const": "a" * MAX_BYTES}}, "guided_json", str(MAX_BYTES)),
        ({"guided_json": nested(MAX_DEPTH + 1)}, "guided_json", f"{MAX_DEPTH + 1} levels"),
        ({"guided_regex": "(" * 65 + ")" * 65}, "guided_regex", "65 brackets"),
        ({"guided_grammar": "start: " + "(" * 30_000}, "guided_grammar", "30000 brackets"),
    ],
)
def test_what_is_wrong_is_named(changes, param, says):
    error = refusal(**changes)
    assert error.param == param
    assert says in str(error)
    assert len(str(error)) < 500


def test_as_deep_as_is_accepted_is_accepted():
    assert grammar(guided_json=nested(MAX_DEPTH)) is not None
