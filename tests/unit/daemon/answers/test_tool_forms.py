"""Answers in every form of calls: however they are cut, the same calls and content. What is no call is lost in none of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.answers.events import Arguments, Call, Content, Reasoning
from pagoda_daemon.answers.forms import TOOL_FORMS, reasoning_form_of, tool_form_of
from pagoda_daemon.answers.wishes import Wish

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "on": {"type": "boolean"},
        "tags": {"type": "array"},
        "where": {"$ref": "#/$defs/place"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["string", "integer"]},
        "any": {},
        "unit": {"enum": ["c", "f"]},
    },
    "$defs": {"place": {"type": "object"}},
}
BEGIN, CALL, SEP, CALL_END, END = (f"<｜tool▁{name}｜>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end"))
V3 = f'{CALL}function{SEP}f\n```json\n{{"city": "Köln }}"}}\n```{CALL_END}'
F = {"city": "Köln }"}
CASES = {
    # name: form, answer, content, calls (arguments as objects, or as text where they are cut)
    "deepseek v3": ("deepseek_v3", f"{BEGIN}{V3}{END}", "", [("f", F)]),
    "deepseek v3, two": ("deepseek_v3", f"Well.{BEGIN}{V3}\n{V3}{END}", "Well.", [("f", F), ("f", F)]),
    "deepseek v3.1": (
        "deepseek_v31",
        f'{BEGIN}{CALL}f{SEP}{{"n": 1}}{CALL_END}{CALL}g{SEP}{{}}{CALL_END}{END}',
        "",
        [("f", {"n": 1}), ("g", {})],
    ),
    "deepseek, text behind": ("deepseek_v31", f"{BEGIN}{CALL}f{SEP}{{}}{CALL_END}{END} so", " so", [("f", {})]),
    "deepseek, no call": ("deepseek_v3", f"{BEGIN}{CALL}oops {{}}", f"{BEGIN}{CALL}oops {{}}", []),
    "deepseek, cut in the head": ("deepseek_v3", f"Hm {BEGIN}{CALL}function{SEP}f", f"Hm {BEGIN}{CALL}function{SEP}f", []),
    "mistral, headed": ("mistral", '[TOOL_CALLS]f[ARGS]{"n": 1}[TOOL_CALLS]g[ARGS]{}', "", [("f", {"n": 1}), ("g", {})]),
    "mistral, with an id": ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"n": 1}', "", [("f", {"n": 1})]),
    "mistral, without marks inside": ("mistral", 'Well. [TOOL_CALLS]f{"n": {"a": 1}} so', "Well.  so", [("f", {"n": {"a": 1}})]),
    "granite": (
        "granite",
        '<|tool_call|>[{"name": "f", "arguments": {"n": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", {"n": 1}), ("g", {})],
    ),
    "phi": ("phi4_mini_json", 'functools[{"name": "f", "arguments": {"n": 1}}]', "", [("f", {"n": 1})]),
    "phi, with marks": ("phi4_mini_json", '<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]<|/tool_call|>', "", [("f", {"n": 1})]),
    "phi, one with marks": ("phi4_mini_json", '<|tool_call|>{"name": "f", "arguments": {}}<|/tool_call|> so', " so", [("f", {})]),
    "phi, text": ("phi4_mini_json", "functools is a module", "functools is a module", []),
    "qwen": (
        "qwen3_coder",
        'I call.\n<function=f>\n<parameter=city>\nKöln "}\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>',
        "I call.\n",
        [("f", {"city": 'Köln "}', "n": 3})],
    ),
    "qwen, two": (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n<parameter=a>\n1\n</parameter>\n</function></tool_call>",
        "",
        [("f", {}), ("g", {"a": "1"})],
    ),
    "qwen, without the outer mark": (
        "qwen3_coder",
        "<function=f>\n<parameter=city>\nx\n</parameter>\n</function>",
        "",
        [("f", {"city": "x"})],
    ),
    "qwen, many lines": (
        "qwen3_coder",
        "<tool_call><function=f><parameter=city>\n\na < b </par\n\n</parameter></function></tool_call>!",
        "!",
        [("f", {"city": "\na < b </par\n"})],
    ),
    "qwen, no call": ("qwen3_coder", "<tool_call>text</tool_call> <func", "<tool_call>text</tool_call> <func", []),
    "qwen, cut in a value": ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\nKö", "", [("f", '{"city": "Kö')]),
    "qwen, twice the same key": (
        "qwen3_coder",
        "<tool_call><function=f><parameter=n>1</parameter><parameter=n>2</parameter></function></tool_call>",
        "",
        [("f", {"n": 1})],
    ),
    "glm": (
        "glm45",
        "Well.\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n<arg_key>on</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
        "Well.\n",
        [("f", {"city": "Köln", "on": True})],
    ),
    "glm, two without lines": (
        "glm45",
        "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value></tool_call><tool_call>g</tool_call>",
        "",
        [("f", {"n": 1}), ("g", {})],
    ),
    "glm, text": ("glm45", "<tool_call> is a tag, <tool", "<tool_call> is a tag, <tool", []),
    "pythonic": ("pythonic", '[f(city="a)]", n=-3), g()]', "", [("f", {"city": "a)]", "n": -3}), ("g", {})]),
    "pythonic, values": (
        "pythonic",
        "[f(a=[1, 2.5, (None, True)], b={'x': {'y': false}})]",
        "",
        [("f", {"a": [1, 2.5, [None, True]], "b": {"x": {"y": False}}})],
    ),
    "pythonic, text behind": ("pythonic", "[f()] so", " so", [("f", {})]),
    "pythonic, a list": ("pythonic", "[1, 2]", "[1, 2]", []),
    "pythonic, text": ("pythonic", "I call [f()]", "I call [f()]", []),
    "pythonic, evaluated": ("pythonic", "[f(a=__import__('os'))]", "[f(a=__import__('os'))]", []),
    "pythonic, no names": ("pythonic", "[f(1)]", "[f(1)]", []),
    "pythonic, the second is none": ("pythonic", "[f(), g(x)]", ", g(x)]", [("f", {})]),
    "pythonic, cut": ("pythonic", "[f(a=1", "[f(a=1", []),
    "llama 4": ("llama4_pythonic", "<|python_start|>[f(n=1)]<|python_end|>", "", [("f", {"n": 1})]),
}
TEXTS = (
    "",
    "<tool_call>",
    "[TOOL_CALLS]",
    "[",
    "{",
    "<function=",
    "x",
    " ",
    "\n",
    "</tool_call>",
    BEGIN,
    CALL,
    SEP,
    "f(",
    ")",
    "]",
    "functools",
    "<|tool_call|>",
    '"',
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<parameter=a>",
    "</parameter>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    '{"name": "f", "arguments": {',
    "}",
    "to=functions.f",
)


def heard(form, pieces, wish=None):
    parser = TOOL_FORMS[form].parser(wish or Wish(parameters={"f": SCHEMA}))
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    return folded(events)


def folded(events):
    """Reasoning, content, and calls with their arguments as text."""
    calls = []
    for event in events:
        if isinstance(event, Call):
            assert event.number == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, Arguments):
            assert event.number == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    texts = ["".join(event.text for event in events if isinstance(event, kind)) for kind in (Reasoning, Content)]
    return *texts, calls


def read(calls, like):
    return [(name, text if isinstance(wanted, str) else json.loads(text)) for (name, text), (_, wanted) in zip(calls, like, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_understood_however_it_is_cut(name):
    form, answer, content, calls = CASES[name]
    whole = heard(form, [answer])
    assert whole[:2] == ("", content)
    assert read(whole[2], calls) == calls
    for pieces in (list(answer), *([answer[:at], answer[at:]] for at in range(len(answer)))):
        assert heard(form, pieces) == whole, pieces


@pytest.mark.deep
@pytest.mark.parametrize("form", TOOL_FORMS)
@given(
    pieces=st.lists(st.sampled_from(TEXTS), max_size=12),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    most=st.sampled_from([None, 1]),
)
def test_pieces_change_nothing_in_any_form(form, pieces, cuts, most):
    answer, wish = "".join(pieces), Wish(most, parameters={"f": SCHEMA})
    whole = heard(form, [answer], wish)
    assert heard(form, list(answer), wish) == whole
    sizes, parts, at = cuts * len(answer), [], 0
    for size in sizes:
        parts.append(answer[at : at + size])
        at += size
    assert heard(form, parts, wish) == whole
    if most:
        assert len(whole[2]) <= 1


@pytest.mark.deep
@pytest.mark.parametrize("form", [name for name in TOOL_FORMS if name != "openai"])
@given(pieces=st.lists(st.sampled_from(TEXTS), max_size=8))
def test_an_answer_without_a_call_is_content_as_it_stands(form, pieces):
    answer = "".join(pieces)
    _, content, calls = heard(form, [answer])
    if not calls:
        assert content == ("" if answer.isspace() else answer)


def test_a_string_in_tags_streams_as_it_comes():
    parser = TOOL_FORMS["qwen3_coder"].parser(Wish(parameters={"f": SCHEMA}))
    parser.push("<tool_call>\n<function=f>\n<parameter=city>\n")
    assert parser.push('a"') == [Arguments(0, 'a\\"')]
    assert parser.push("b\n") == [Arguments(0, "b")]
    assert parser.push("c</para") == [Arguments(0, "\\nc")]


def test_what_is_no_pythonic_call_is_content_at_once():
    parser = TOOL_FORMS["pythonic"].parser(Wish())
    assert parser.push("[f(x") == []
    assert parser.push(")") == [Content("[f(x)")]


def test_calls_beyond_one_are_content_in_each_form():
    for name in ("qwen, two", "glm, two without lines", "pythonic", "granite", "mistral, headed", "deepseek v3.1"):
        form, answer, _, calls = CASES[name]
        _, content, found = heard(form, [answer], Wish(1, parameters={"f": SCHEMA}))
        assert read(found, calls[:1]) == calls[:1], name
        assert content, name


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ tools }} <tool_call>", "hermes", None),
        ("{{ tools }} <tool_call> </think>", "hermes", "qwen3"),
        ("{{ tools }} <tool_call> <function= <parameter=", "qwen3_coder", None),
        ("{{ tools }} <tool_call> <arg_key> [gMASK] </think>", "glm45", "glm45"),
        ("{{ tools }} [TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("{{ tools }} <|tool_call|> Here is my thought process:", "granite", "granite"),
        ("{{ tools }} functools[", "phi4_mini_json", None),
        (f"{{{{ tools }}}} {BEGIN} ```json <｜Assistant｜> </think>", "deepseek_v3", "deepseek_r1"),
        (f"{{{{ tools }}}} {BEGIN}", "deepseek_v31", None),
        (f"{{{{ tools }}}} {BEGIN} <｜Assistant｜> <think> </think>", "deepseek_v31", "deepseek_v3"),
        ("{{ '<|tool|>' + tools | tojson + '<|/tool|>' }}", "phi4_mini_json", None),
        ("{{ tools }} [func_name1(a=1)]", "pythonic", None),
        ("{{ tools }} <|python_start|>[func_name1(a=1)]", "llama4_pythonic", None),
        ('{{ tools }} {"name": "", "parameters": {}}', "llama3_json", None),
        ("{{ tools }} <|channel|><|message|>", "openai", None),
        ("<tool_call>", None, None),
        ("{{ tools }}", None, None),
    ],
)
def test_the_form_is_read_from_the_template(template, tools, reasoning):
    form, thinks = tool_form_of(template), reasoning_form_of(template)
    assert (form.name if form else None, thinks.name if thinks else None) == (tools, reasoning)
    assert tool_form_of(template, "granite").name == "granite"


def test_a_template_says_which_of_two_forms_is_enforced():
    assert tool_form_of("tools [TOOL_CALLS][ARGS]").layout.head_of("f") == "[TOOL_CALLS]f[ARGS]"
    assert tool_form_of("tools [TOOL_CALLS]").layout.head_of("f").startswith('{"name": "f"')
    assert tool_form_of("tools <|tool|>").layout.begin == "<|tool_call|>["
    assert tool_form_of("tools <|tool|> functools").layout.begin == "functools["
