"""Values without types, as JSON by the tool's schema; and Python's literals, of which nothing is evaluated."""

import json
import warnings

import pytest
from pagoda_daemon.answers.literals import _TEXT, call, literal
from pagoda_daemon.answers.values import dumped, json_of, types_of

ALL = frozenset(("string", "integer", "number", "boolean", "object", "array", "null"))
SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "one": {"enum": [1, 2]},
        "ref": {"$ref": "#/$defs/a~1b"},
        "loop": {"$ref": "#/properties/loop"},
        "both": {"allOf": [{"type": ["string", "integer"]}, {"type": "integer"}]},
        "free": {},
        "true": True,
    },
    "additionalProperties": {"type": "boolean"},
    "$defs": {"a/b": {"anyOf": [{"type": "object"}, {"type": "null"}]}},
}


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("text", {"string"}),
        ("one", {"integer", "number"}),
        ("ref", {"object", "null"}),
        ("loop", ALL),
        ("both", {"integer"}),
        ("free", ALL),
        ("true", ALL),
        ("other", {"boolean"}),
    ],
)
def test_the_schema_says_which_types_a_value_may_have(name, types):
    assert types_of(SCHEMA, name) == types
    assert types_of({}, name) == {"string"}


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("3", {"integer"}, 3),
        (" 3 ", {"integer", "null"}, 3),
        ("3", {"string"}, "3"),
        ("3", {"string", "integer"}, 3),
        ("3.0", {"integer"}, 3),
        ("3.5", {"integer"}, "3.5"),
        ("3.0", {"number"}, 3.0),
        ("True", {"boolean"}, True),
        ("null", {"string", "null"}, None),
        ("None", {"string"}, "None"),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': (1, None)}", {"object"}, {"a": [1, None]}),
        ('["a"]', {"object"}, '["a"]'),
        ('"a"', {"integer"}, "a"),
        ('"a"', {"string", "integer"}, '"a"'),
        ("1e999", {"number"}, "1e999"),
        ("NaN", {"number"}, "NaN"),
        ("9" * 5000, {"integer"}, "9" * 5000),
        ("a\n\"b'", {"string"}, "a\n\"b'"),
        ("", {"object"}, ""),
    ],
)
def test_a_value_is_read_by_its_types_and_is_a_string_otherwise(text, types, value):
    assert json.loads(json_of(text, frozenset(types))) == value


def test_half_a_pair_of_surrogates_stays_json_that_can_be_sent():
    assert json_of('["\\ud800"]', ALL).encode() == b'["\\ud800"]'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, -2.5, 1e3, (True, none)]", [1, -2.5, 1000.0, [True, None]]),
        ("{'a': \"b\" 'c'}", {"a": "bc"}),
        (r"'\d\n\u00e9\'3d'", "\\d\né'3d"),
    ],
)
def test_literals_are_values(text, value):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert literal(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "f()",
        "a",
        "1+1",
        "[x for x in y]",
        "{1: 2}",
        "{**a}",
        "b'x'",
        "f'{x}'",
        "1j",
        "...",
        "-'a'",
        "-True",
        "1if 1else 2",
        "0x1for",
        "a.b",
        "lambda: 1",
        "",
        "\0",
    ]
    + [shape * 20_000 for shape in ("(", "-", "1+", "not ", "[", "a.", "1if 1else ")],
)
def test_nothing_but_a_literal_is_one(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r".+"):
            literal(text)


@pytest.mark.parametrize("text", ["f(1)", "f(*a)", "f(**a)", "f(a=1)(b=2)", "f[0](a=1)", "f(a=g())", "f(a=1, a=2)", "print"])
def test_a_call_has_named_literal_arguments(text):
    with pytest.raises(ValueError, match=r".+"):
        call(text)
    assert call("a.f(base64_x=1e3)") == ("a.f", {"base64_x": 1000.0})


@pytest.mark.parametrize("quote", ["'", '"'])
def test_text_that_nothing_closes_is_looked_at_once(quote):
    for text in (f"[{quote}a", f"[{quote}" + f"\\{quote}" * 9, f"[{quote}a\\"):
        assert _TEXT.sub("", text) == "["
    assert _TEXT.sub("", f"[{quote}a{quote}, 1x") == "[, 1x"


def test_what_is_nested_too_deeply_is_no_value():
    value = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(ValueError, match="nested"):
        dumped(value)
