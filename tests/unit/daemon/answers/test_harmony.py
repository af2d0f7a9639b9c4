"""GPT-OSS's answers: channels become reasoning, calls and content, however they are cut."""

import pytest
from pagoda_daemon.answers.events import Arguments, Call, Content, Reasoning
from pagoda_daemon.answers.harmony import Harmony
from pagoda_daemon.answers.wishes import Wish

START = "<|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>Hm. {<|x"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
FINAL = "<|channel|>final<|message|>"
CASES = {
    # name: prompt's end, answer, reasoning, content, calls
    "final": (START, f"{FINAL}Yes.", "", "Yes.", []),
    "thought": (START, f"{THOUGHT}<|end|>{START}{FINAL}Yes.", "Hm. {<|x", "Yes.", []),
    "a call": (START, f'{THOUGHT}<|end|>{START}{CALL}{{"n": 1}}', "Hm. {<|x", "", [("f", '{"n": 1}')]),
    "a call, ended": (START, f'{CALL}{{"n": 1}}<|call|>', "", "", [("f", '{"n": 1}')]),
    "a call to a role": (START, " to=functions.f<|channel|>commentary json<|message|>{}", "", "", [("f", "{}")]),
    "two calls": (START, f"{CALL}{{}}<|call|>{START}{CALL}{{}}", "", "", [("f", "{}"), ("f", "{}")]),
    "no arguments": (START, f"{CALL}<|call|>", "", "", [("f", "{}")]),
    "a preamble": (START, f"<|channel|>commentary<|message|>I look.<|end|>{START}{CALL}{{}}", "", "I look.", [("f", "{}")]),
    "two thoughts": (
        START,
        f"<|channel|>analysis<|message|>a<|end|>{START}<|channel|>analysis<|message|>b<|end|>{START}{FINAL}c",
        "ab",
        "c",
        [],
    ),
    "a built-in tool": (START, "<|channel|>analysis to=python<|message|>1<|call|>", "1", "", []),
    "cut in thought": (START, THOUGHT, "Hm. {<|x", "", []),
    "cut in a header": (START, f"{THOUGHT}<|end|>{START}<|channel|>fin", "Hm. {<|x", "", []),
    "continued": (f"{START}{FINAL}Ye", "s.", "", "s.", []),
    "no header": (START, "Yes. <|", "", "Yes. <|", []),
}


def heard(prompt_end, pieces, wish):
    parser = Harmony(wish, prompt_end)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    calls = []
    for event in events:
        if isinstance(event, Call):
            calls.append((event.name, ""))
        elif isinstance(event, Arguments):
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return *("".join(event.text for event in events if isinstance(event, kind)) for kind in (Reasoning, Content)), calls


@pytest.mark.parametrize("name", CASES)
def test_an_answer_is_understood_however_it_is_cut(name):
    end, answer, thought, content, calls = CASES[name]
    for pieces in ([answer], list(answer), *([answer[:at], answer[at:]] for at in range(len(answer)))):
        assert heard(end, pieces, Wish()) == (thought, content, calls), pieces


def test_without_tools_and_beyond_the_last_allowed_call_nothing_is_a_call():
    _, answer, *_ = CASES["two calls"]
    assert heard(START, [answer], None) == ("", "{}{}", [])
    assert heard(START, [answer], Wish(1)) == ("", "{}", [("f", "{}")])
    assert heard(START, [answer], Wish(1, "calls")) == ("", "", [("f", "{}")])
