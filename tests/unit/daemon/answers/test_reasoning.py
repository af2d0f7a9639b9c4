"""Reasoning between marks: however an answer is cut, the same reasoning, the same content, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.answers.counting import ThoughtTokens
from pagoda_daemon.answers.events import Content, PlainText, Reasoning
from pagoda_daemon.answers.forms import REASONING_FORMS, TOOL_FORMS
from pagoda_daemon.answers.reasoning import ReasoningParser, starts_in
from pagoda_daemon.answers.wishes import Wish

THINK = REASONING_FORMS["qwen3"]
CASES = {
    # name: start, answer, reasoning, content
    "the prompt opened it": ("inside", "\nHm.\n</think>\n\nYes.", "\nHm.\n", "\n\nYes."),
    "the answer opens it": ("open", "<think>\nHm.</think>Yes.", "\nHm.", "Yes."),
    "both open it": ("inside", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    "no reasoning": ("open", "Yes <think>.", "", "Yes <think>."),
    "what begins like a mark": ("open", " <thi", "", " <thi"),
    "cut within": ("inside", "Hm. </thin", "Hm. </thin", ""),
    "cut in the first mark": ("inside", "<thi", "<thi", ""),
    "nothing": ("inside", "", "", ""),
    "the prompt closed it": ("outside", "Yes.</think>", "", "Yes.</think>"),
    "a second end": ("inside", "a</think>b</think>c", "a", "b</think>c"),
    "empty": ("open", "<think></think>Yes", "", "Yes"),
}


def heard(pieces, start, then=None):
    parser = ReasoningParser(THINK, start, then or PlainText())
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    thought = "".join(event.text for event in events if isinstance(event, Reasoning))
    return thought, "".join(event.text for event in events if isinstance(event, Content)), events


@pytest.mark.parametrize("name", CASES)
def test_reasoning_and_content_are_distinguished_however_the_answer_is_cut(name):
    start, answer, thought, content = CASES[name]
    for pieces in ([answer], list(answer), *([answer[:at], answer[at:]] for at in range(len(answer)))):
        assert heard(pieces, start)[:2] == (thought, content), pieces


@pytest.mark.deep
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "th", "ink>", "x", " ", "\n"])),
    st.sampled_from(["inside", "open", "outside"]),
)
def test_pieces_change_nothing_and_only_marks_are_left_out(pieces, start):
    answer = "".join(pieces)
    thought, content, _ = heard(pieces, start)
    assert (thought, content) == heard([answer], start)[:2]
    left = answer.strip() if answer.lstrip().startswith("<think>") and start != "outside" else answer
    assert (thought + content).replace(" ", "").replace("\n", "") in {
        left.replace(begin, "", 1).replace(end, "", 1).replace(" ", "").replace("\n", "")
        for begin in ("<think>", "\0")
        for end in ("</think>", "\0")
    }


def test_reasoning_streams_but_for_what_may_become_the_mark():
    parser = ReasoningParser(THINK, "inside", PlainText())
    assert parser.push("Hm </th") == [Reasoning("Hm ")]
    assert parser.push("ere") == [Reasoning("</there")]
    assert parser.push("</think>Y") == [Content("Y")]


def test_calls_follow_reasoning_and_marks_of_calls_within_it_are_reasoning():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    thought, content, events = heard([f"I write {call}.</think>\n\n{call}"], "inside", TOOL_FORMS["hermes"].parser(Wish()))
    assert (thought, content) == (f"I write {call}.", "")
    assert [event.name for event in events if hasattr(event, "name")] == ["f"]


@pytest.mark.parametrize(
    ("end", "start", "always"),
    [
        ("<|im_start|>assistant\n", "open", "inside"),
        ("<|im_start|>assistant\n<think>\n", "inside", "inside"),
        ("<think>\n\n</think>\n\n", "outside", "outside"),
        ("a user wrote <think><|im_end|>\n", "open", "inside"),
    ],
)
def test_the_prompts_end_says_where_the_answer_begins(end, start, always):
    assert starts_in(THINK, end) == start
    assert starts_in(REASONING_FORMS["deepseek_r1"], end) == always


class Compared(int):
    """A number that counts how often it is compared with another one."""

    times = 0

    def __lt__(self, other):
        Compared.times += 1
        return int(self) < other

    def __ge__(self, other):
        Compared.times += 1
        return int(self) >= other


class Undecided(PlainText):
    """A parser for which all of the text may yet be reasoning."""

    since, reach, thinking, done = 0, Compared(0), True, False


class LineBreaks:
    """A detokenizer whose every token is one."""

    def push(self, token_ids):
        return "\n" * len(token_ids)


def test_a_token_costs_the_same_however_many_wait_for_the_first_mark(monkeypatch):
    monkeypatch.setattr(Compared, "times", 0)
    ThoughtTokens(Undecided(), LineBreaks()).take([1] * 100)
    assert 0 < Compared.times <= 200
