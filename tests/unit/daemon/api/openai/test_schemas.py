"""A schema as it is written → what an answer may be, judged by the matcher that the workers use; and what is refused, by its place."""

import json

import pytest
from llguidance import LLTokenizer
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest, parse
from pagoda_daemon.api.openai.schemas import EXACT, FORMATS
from pagoda_daemon.api.openai.structured import grammar_of
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.structured.compile import matcher_of

BYTES = LLTokenizer("byte")
HERE = "response_format.json_schema.schema"
WAYS = {
    HERE: lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
    "structured_outputs.json": lambda schema: {"structured_outputs": {"json": schema}},
    "guided_json": lambda schema: {"guided_json": json.dumps(schema)},
}
FIELD = {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#/$defs/one"}, {"type": "null"}]}}}


def requested(fields):
    """The grammar of a request with these fields, and what its answer's header names."""
    warnings = []
    request = parse(json.dumps({"model": "m", "prompt": "p", **fields}).encode(), CompletionRequest, warnings)
    return grammar_of(request, ()), warnings


def accepts(schema, text, way=HERE):
    grammar, _ = requested(WAYS[way](schema))
    return follows(grammar, text)


def follows(grammar, text):
    matcher = matcher_of(BYTES, grammar.kind, grammar.text)
    tokens = BYTES.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def loosened(schema):
    return requested(WAYS[HERE](schema))[1]


def refusal(schema, way=HERE):
    with pytest.raises(BadRequest) as caught:
        requested(WAYS[way](schema))
    assert caught.value.code == "invalid_grammar"
    return caught.value


# Formats


@pytest.mark.parametrize("schema", [{"format": "colour"}, {"type": "string", "format": "int32", "minLength": 3}])
def test_a_format_that_nobody_knows_is_an_annotation(schema):
    assert accepts(schema, '"red"')
    assert accepts({"type": "object", "properties": {"format": {"$ref": "#/x/0"}}, "x": [schema]}, '{"format": "red"}')
    assert loosened(schema) == []


def test_what_stands_beside_such_a_format_is_followed():
    assert not accepts({"type": "string", "format": "colour", "maxLength": 2}, '"red"')


@pytest.mark.parametrize("name", sorted(FORMATS - {"unknown"}))
def test_a_format_that_is_known_is_followed(name):
    assert not accepts({"type": "string", "format": name}, '"?"')


# oneOf


@pytest.mark.parametrize(
    ("branches", "text"),
    [
        ([{"type": "number"}, {"type": "integer"}], "1"),
        ([{"type": "string"}, {"const": "a"}], '"a"'),
        ([{"enum": [1]}, {"const": 1.0}], "1"),
        ([{"$ref": "#/$defs/cat"}, {"type": "object"}], '{"kind": "cat"}'),
        ([{"type": "object", "properties": {"kind": {"const": kind}}} for kind in ("a", "b")], "{}"),
    ],
)
def test_branches_that_may_overlap_are_any_of_and_reported(branches, text):
    cat = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
    schema = {"oneOf": branches, "$defs": {"cat": cat}}
    assert accepts(schema, text)
    assert loosened(schema) == [f"{HERE}.oneOf"]


@pytest.mark.parametrize(
    "branches",
    [
        [{"type": "string"}, {"type": "integer"}, {"type": "null"}],
        [{"const": 1}, {"const": True}, {"const": "1"}],
        [{"enum": ["a", "b"]}, {"enum": ["c"]}],
        [{"$ref": f"#/$defs/{kind}"} for kind in ("cat", "dog")],
    ],
)
def test_branches_that_exclude_each_other_are_followed_exactly_and_not_reported(branches):
    defs = {
        kind: {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"], "additionalProperties": False}
        for kind in ("cat", "dog")
    }
    assert loosened({"oneOf": branches, "$defs": defs}) == []


def test_every_place_of_a_loosened_one_of_is_reported_in_words_that_a_header_may_hold():
    loose = {"oneOf": [{"type": "string"}, {"minLength": 1}]}
    schema = {
        "type": "object",
        "properties": {"a": {"items": loose}, "b\r\nx: y": loose, "c": {"$ref": "#/$defs/c"}},
        "$defs": {"c": loose},
    }
    assert sorted(loosened(schema)) == [f"{HERE}.$defs.c.oneOf", f"{HERE}.properties.?.oneOf", f"{HERE}.properties.a.items.oneOf"]
    assert len(loosened({"anyOf": [loose] * 99})) == 8


def test_comparing_branches_has_a_budget(monkeypatch):
    """Comparisons are counted: 1500 branches would be a million, each of a hundred values."""
    from pagoda_daemon.api.openai import overlap

    calls = []
    followed = overlap._followed
    monkeypatch.setattr(overlap, "_followed", lambda *given: calls.append(1) or followed(*given))
    assert loosened({"oneOf": [{"const": number} for number in range(1500)]}) == [f"{HERE}.oneOf"]
    assert len(calls) < 100_000


# Integers


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("minimum", 10**18),
        ("exclusiveMinimum", 10**18 - 128),
        ("maximum", -(10**18)),
        ("multipleOf", 10**9),
        ("multipleOf", EXACT + 1),
        ("const", EXACT + 1),
        ("const", 10**18),
        ("enum", [1, {"a": [EXACT + 1]}]),
    ],
)
def test_an_integer_that_would_not_be_exact_is_refused_by_name(keyword, value, way):
    error = refusal({"type": "object", "properties": {"a": {"type": "integer", keyword: value}}}, way)
    assert error.param == f"{way}.properties.a.{keyword}"
    assert "got" in str(error)


@pytest.mark.parametrize("number", [EXACT, EXACT + 2, 10**17, -(2**59), 10**18 - 128])
def test_an_integer_of_a_const_or_an_enum_is_exact_if_float64_holds_it(number):
    for schema in ({"const": number}, {"enum": ["a", number]}, {"type": "integer", "enum": [number]}):
        assert [step for step in (-128, -64, -2, -1, 0, 1, 2, 64, 128) if accepts(schema, str(number + step))] == [0]
    assert accepts({"const": {"a": [number]}}, f'{{"a": [{number}]}}')


def test_the_library_still_has_no_other_integers():
    """The day this fails, `bounds.is_exact` and the bounds that move inwards may go."""
    for schema in ({"const": EXACT + 1}, {"enum": [EXACT + 1]}, {"type": "integer", "minimum": EXACT + 1, "maximum": EXACT + 1}):
        assert not follows(Grammar("json_schema", json.dumps(schema)), str(EXACT + 1))


@pytest.mark.parametrize("bound", [5, EXACT - 1, EXACT, EXACT + 2, 2**59, 10**18 - 128, -EXACT, -(2**59)])
def test_an_integer_bound_that_is_accepted_is_exact(bound):
    for keyword, inside, outside in (("minimum", bound, bound - 1), ("maximum", bound, bound + 1)):
        schema = {"type": "integer", keyword: bound}
        assert accepts(schema, str(inside))
        assert not accepts(schema, str(outside))
    if abs(bound) < EXACT:
        assert accepts({"type": "integer", "exclusiveMinimum": bound}, str(bound + 1))
        assert not accepts({"type": "integer", "exclusiveMinimum": bound}, str(bound))
        assert accepts({"type": "integer", "exclusiveMaximum": bound}, str(bound - 1))
        assert not accepts({"type": "integer", "exclusiveMaximum": bound}, str(bound))


@pytest.mark.parametrize("bound", [EXACT + 1, EXACT + 3, 2**57 + 1, 10**18 - 129, -EXACT - 1, -(2**59) - 7])
def test_an_inexact_bound_of_an_integer_moves_inwards(bound):
    """No answer is beyond the bound that was asked for, and one that is 128 away from it is allowed."""
    for lowest, sign in (("minimum", 1), ("maximum", -1)):
        exclusive = f"exclusive{lowest.capitalize()}"
        for bounds, edge in (({lowest: bound}, bound), ({lowest: -sign * 2**60, exclusive: bound}, bound + sign)):
            schema = {"type": "integer", **bounds}
            assert accepts(schema, str(edge + sign * 128)), schema
            assert not any(accepts(schema, str(edge - sign * step)) for step in (1, 128)), schema


@pytest.mark.parametrize(("low", "high"), [(-(2**63), 2**63 - 1), (0, 2**64 - 1), (-(2**127), 2**127)])
def test_bounds_of_the_widest_integers_allow_what_fits_18_digits(low, high):
    schema = {"type": "integer", "minimum": low, "maximum": high}
    assert accepts(schema, str(10**17 + 1))
    assert accepts(schema, "-17") is (low < 0)
    assert not accepts(schema, str(2**63))


def test_the_largest_of_64_bits_is_an_exact_maximum():
    schema = {"type": "integer", "maximum": 2**63 - 1}
    assert accepts(schema, str(2**63 - 1))
    assert not accepts(schema, str(2**63))
    assert refusal({"type": "number", "maximum": 2**63 - 1}).param == f"{HERE}.maximum"


@pytest.mark.parametrize("step", [7, 10**8])
def test_multiples_that_are_accepted_are_exact(step):
    schema = {"type": "integer", "multipleOf": step}
    assert accepts(schema, str(step * 99))
    assert not accepts(schema, str(step * 99 + 1))


# Blanks


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("text", "fine"), [('{ "a" : [ 1 , 2 ] }', True), ('{\n"a":1\n}', True), ('{"a":  1}', False), ('{"a": 1 \n}', False)]
)
def test_one_blank_at_most_stands_between_the_parts(way, text, fine):
    assert accepts({"type": "object", "x-guidance": {"whitespace_pattern": " *"}}, text, way) is fine


def test_one_blank_at_most_stands_in_any_object():
    grammar, _ = requested({"response_format": {"type": "json_object"}})
    assert follows(grammar, '{"a": 1}')
    assert not follows(grammar, '{"a":  1}')


# true, false, keywords


@pytest.mark.parametrize("way", WAYS)
def test_true_is_any_json_and_false_is_refused(way):
    for text in ("1", '{"a": [null]}', '"x"'):
        assert accepts(True, text, way)
    assert refusal(False, way).param == way


@pytest.mark.parametrize("keyword", ["not", "if", "then", "else", "uniqueItems", "contains", "propertyNames", "dependentRequired"])
def test_a_keyword_that_cannot_be_followed_is_refused_by_its_place(keyword):
    inner = {keyword: {}}
    cases = {
        f"{HERE}.{keyword}": inner,
        f"{HERE}.properties.a.items.anyOf[1].{keyword}": {"properties": {"a": {"items": {"anyOf": [True, inner]}}}},
        f"{HERE}.$defs.one.additionalProperties.{keyword}": {**FIELD, "$defs": {"one": {"additionalProperties": inner}}},
        f"{HERE}.$defs.n.{keyword}": {"$ref": "#n", "$defs": {"n": {"$anchor": "n", **inner}}},
    }
    for param, schema in cases.items():
        error = refusal({**schema, "$schema": "http://json-schema.org/draft-07/schema#"})
        assert (error.param, keyword in str(error)) == (param, True)


def test_such_words_where_they_are_no_keywords_are_accepted():
    schema = {
        "type": "object",
        "properties": {"not": {"const": {"if": {}}}, "format": {"default": {"not": 1}}, "self": {"$ref": "#"}},
        "required": ["not"],
        "$defs": {"unused": {"not": {}}},
    }
    assert accepts(schema, '{"not": {"if": {}}, "format": 1, "self": {"not": {"if": {}}}}')


@pytest.mark.parametrize("ref", ["#/$defs/none", "#/required/0", "#/$defs/a~1b%20c/x", "#" + "/a" * 5000, "other.json#/a"])
def test_a_reference_to_nothing_is_left_to_the_library(ref):
    with pytest.raises(ValueError, match=r"."):
        accepts({"$ref": ref, "required": ["a"]}, "1")


def test_chats_report_it_too():
    found = []
    schema = {"oneOf": [{"type": "string"}, {"minLength": 1}]}
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "guided_json": schema, "unheard_of": 1}
    parse(json.dumps(body).encode(), ChatRequest, found)
    assert found == ["unheard_of", "guided_json.oneOf"]
