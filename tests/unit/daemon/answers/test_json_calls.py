"""Scripted answers with calls in every way that models write them: however they are cut, the same calls, the same content, nothing lost."""

import codecs
import json

import pytest
from pagoda_daemon.answers.events import Arguments, Call, Content
from pagoda_daemon.answers.forms import TOOL_FORMS
from pagoda_daemon.answers.wishes import Wish

ARGS = '{"city": "Köln \\"}{[", "n": [1, {"a": "\\\\"}]}'
F = f'{{"name": "f", "arguments": {ARGS}}}'
G = '{"name": "g-2", "arguments": {}}'
PF, PG = F.replace("arguments", "parameters"), G.replace("arguments", "parameters")
SCRIPTS = {
    # name: format, answer, content, calls
    "one": ("hermes", f"<tool_call>\n{F}\n</tool_call>", "", [("f", ARGS)]),
    "two": ("hermes", f"<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>\n", "", [("f", ARGS), ("g-2", "{}")]),
    "before": ("hermes", f"\n Let me see.\n<tool_call>{F}</tool_call>", "\n Let me see.\n", [("f", ARGS)]),
    "between": ("hermes", f"<tool_call>{F}</tool_call> and 🦜 <tool_call>{G}</tool_call>.", " and 🦜 .", [("f", ARGS), ("g-2", "{}")]),
    "plain": ("hermes", "a <tool b </tool_call> <tool_", "a <tool b </tool_call> <tool_", []),
    "backwards": ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', "", [("f", '{"a": 1}')]),
    "text arguments": ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    "more keys": ("hermes", '<tool_call>{"name": "f", "arguments": {}, "id": "}{"}</tool_call>x', "x", [("f", "{}")]),
    "no brace": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call> {x}', " {x}", [("f", '{"a": 1}')]),
    "cut in the head": ("hermes", 'Hm <tool_call>\n{"name": "f", "arg', 'Hm <tool_call>\n{"name": "f", "arg', []),
    "cut in the arguments": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    "no object": (
        "hermes",
        f"<tool_call>nonsense</tool_call><tool_call>{G}</tool_call>",
        "<tool_call>nonsense</tool_call>",
        [("g-2", "{}")],
    ),
    "no call": ("hermes", '<tool_call>{"a": 1}</tool_call>!', '<tool_call>{"a": 1}</tool_call>!', []),
    "no name": (
        "hermes",
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        [],
    ),
    "half a pair in a name": ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', "", [("\\ud800", "{}")]),
    "half a pair in arguments": (
        "hermes",
        '<tool_call>{"arguments": {"a": "\\ud800"}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {"a": "\\ud800"}, "name": "f"}</tool_call>',
        [],
    ),
    "no JSON number": (
        "hermes",
        '<tool_call>{"arguments": {"a": NaN}, "name": "f"}</tool_call>',
        '<tool_call>{"arguments": {"a": NaN}, "name": "f"}</tool_call>',
        [],
    ),
    "long head": ("hermes", f'<tool_call>{{"name": "{"x" * 600}", "arguments": {{}}}}</tool_call>', "", [("x" * 600, "{}")]),
    "list": ("mistral", f"[TOOL_CALLS][{F}, {G}]", "", [("f", ARGS), ("g-2", "{}")]),
    "list with text": ("mistral", f"Well. [TOOL_CALLS] [{F}] Done", "Well.  Done", [("f", ARGS)]),
    "single": ("mistral", f"[TOOL_CALLS]{F}", "", [("f", ARGS)]),
    "broken list": ("mistral", f"[TOOL_CALLS][{G}, oops", ", oops", [("g-2", "{}")]),
    "no list": ("mistral", "[TOOL_CALLS] none [TOOL_", "[TOOL_CALLS] none [TOOL_", []),
    "llama": ("llama3_json", f" {PF}", "", [("f", ARGS)]),
    "llama two": ("llama3_json", f"{PF}; {PG}", "", [("f", ARGS), ("g-2", "{}")]),
    "llama typed": ("llama3_json", '{"type": "function", "name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "llama text": ("llama3_json", f"It is {PF}", f"It is {PF}", []),
    "llama json": ("llama3_json", '{"answer": 42} so', '{"answer": 42} so', []),
    "llama cut": ("llama3_json", '{"name": "f"', '{"name": "f"', []),
}


def heard(form, pieces, most=None, shape="free"):
    """Content, calls, and how many pieces the arguments came in."""
    parser = TOOL_FORMS[form].parser(Wish(most, shape))
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    content = "".join(event.text for event in events if isinstance(event, Content))
    calls, pieces = [], 0
    for event in events:
        if isinstance(event, Call):
            assert event.number == len(calls)
            calls.append((event.name, ""))
        elif isinstance(event, Arguments):
            pieces += 1
            name, text = calls[event.number]
            calls[event.number] = (name, text + event.text)
    return content, calls, pieces


def byte_by_byte(text):
    decoder = codecs.getincrementaldecoder("utf-8")()
    return [decoder.decode(bytes([byte])) for byte in text.encode()]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_answer_is_understood_whole(name):
    form, answer, content, calls = SCRIPTS[name]
    assert heard(form, [answer])[:2] == (content, calls)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_answer_is_understood_cut_at_every_byte(name):
    form, answer, content, calls = SCRIPTS[name]
    assert heard(form, byte_by_byte(answer))[:2] == (content, calls)
    for at in range(len(answer)):
        assert heard(form, [answer[:at], answer[at:]])[:2] == (content, calls), answer[:at]


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("size", [2, 3, 5, 7, 11])
def test_an_answer_is_understood_in_tokens_of_any_size(name, size):
    form, answer, content, calls = SCRIPTS[name]
    assert heard(form, [answer[at : at + size] for at in range(0, len(answer), size)])[:2] == (content, calls)


def test_arguments_stream_as_they_come():
    text = f'<tool_call>{{"name": "f", "arguments": {json.dumps({"text": "x" * 500})}}}</tool_call>'
    assert heard("hermes", text)[2] > 500


def test_content_is_held_back_only_while_it_may_be_a_call():
    parser = TOOL_FORMS["hermes"].parser(Wish())
    assert parser.push("Hello <tool") == [Content("Hello ")]
    assert parser.push("box>") == [Content("<toolbox>")]
    assert TOOL_FORMS["llama3_json"].parser(Wish()).push("Hello {") == [Content("Hello {")]


def test_calls_beyond_those_asked_for_are_content():
    first, second = f"<tool_call>{F}</tool_call>", f"<tool_call>{G}</tool_call>"
    assert heard("hermes", byte_by_byte(first + second), most=1)[:2] == (second, [("f", ARGS)])


def test_long_answers_cost_no_more_per_character():
    """Characters looked at, not time: braces are counted once each."""
    parser = TOOL_FORMS["hermes"].parser(Wish())
    parser.push('<tool_call>{"arguments": {"a": "')
    for _ in range(2000):
        parser.push("x" * 50)
    assert parser._scanned >= 100_000
    assert parser.push('"}, "name": "f"}') != []


BOUND = {
    # what a grammar allows: form, shape, answer, content, calls
    "calls": ("hermes", "calls", SCRIPTS["two"][1], "", SCRIPTS["two"][3]),
    "calls in a list": ("mistral", "calls", SCRIPTS["list"][1], "", SCRIPTS["list"][3]),
    "calls alone": ("llama3_json", "calls", SCRIPTS["llama two"][1], "", SCRIPTS["llama two"][3]),
    "either, a call": ("hermes", "either", SCRIPTS["two"][1], "", SCRIPTS["two"][3]),
    "either, JSON": ("hermes", "either", '{"a": "<tool_call>"}', '{"a": "<tool_call>"}', []),
    "either, a list": ("mistral", "either", "[1]", "[1]", []),
    "either, JSON alone": ("llama3_json", "either", '{"a": 1}', '{"a": 1}', []),
    "either, a call alone": ("llama3_json", "either", PF, "", [("f", ARGS)]),
}


@pytest.mark.parametrize("name", BOUND)
def test_an_answer_bound_by_a_grammar_is_understood_and_cut_anywhere_leaks_nothing(name):
    form, shape, answer, content, calls = BOUND[name]
    assert heard(form, byte_by_byte(answer), shape=shape)[:2] == (content, calls)
    for at in range(len(answer)):
        half, some, _ = heard(form, byte_by_byte(answer[:at]), shape=shape)
        assert [called for called, _ in some] == [called for called, _ in calls][: len(some)]
        if shape == "calls" or (calls and TOOL_FORMS[form].layout.mark and at >= len(TOOL_FORMS[form].layout.mark)):
            assert half == "", answer[:at]
        elif not calls:
            assert half == answer[:at]


def test_arguments_of_any_depth_are_a_call_or_content_and_no_error():
    for depth in range(700, 1000):
        answer = f'<tool_call>{{"arguments": {{"a": {"[" * depth}{"]" * depth}}}, "name": "f"}}</tool_call>'
        parser = TOOL_FORMS["hermes"].parser(Wish())
        events = [*parser.push(answer), *parser.finish()]
        assert isinstance(events[0], Call) or "".join(event.text for event in events) == answer
