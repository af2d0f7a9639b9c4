"""An answer's events become blocks: whole and streamed alike, whatever the pieces, and each event in its place."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_daemon.answers.events import Arguments, Call, Content, Reasoning
from pagoda_daemon.answers.forms import TOOL_FORMS
from pagoda_daemon.answers.wishes import Wish
from pagoda_daemon.api.anthropic.dialect import Messages
from pagoda_daemon.api.openai.reading import Reading
from pagoda_daemon.api.openai.replies import Answer, CompletionDetails, Head, PromptDetails, Usage
from pagoda_daemon.core.errors import RequestFailed
from pagoda_daemon.text.answer import Piece
from support.judges import anthropic_types
from support.suite.profiles import examples

WHOLE = "whole"
USAGE = Usage(10, 5, 15, PromptDetails(4), CompletionDetails(2))
THOUGHT, TEXT, CALL, INPUT = Reasoning("hm"), Content("hi"), Call(0, "f"), Arguments(0, '{"a": [1, "x"]}')


class ScriptedParser:
    """Stands for the parser: a piece of text is the next event, and all that is left if it is the whole answer."""

    def __init__(self, events):
        self._left = list(events)

    def push(self, text):
        taken, self._left = (self._left, []) if text == WHOLE else (self._left[:1], self._left[1:])
        return taken

    def finish(self):
        return []


def dialect(events, **changes):
    return Messages(Head("r", 0, "m", False, used=lambda: USAGE, reading=Reading(lambda: ScriptedParser(events))), **changes)


def whole(events, reason="stop", stop=None, **changes):
    return json.loads(dialect(events, **changes).whole([Answer(Piece(WHOLE), reason, stop=stop)], USAGE))


def frames(events, reason="stop", stop=None, **changes):
    """Name and data of each event of the stream."""
    made = dialect(events, **changes)
    out = made.opening() + b"".join(made.text(Piece("x")) for _ in events) + made.finish(reason, 0, stop) + made.end(USAGE)
    found = []
    for frame in out.decode().split("\n\n")[:-1]:
        name, data = frame.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def accumulated(events, reason="stop", stop=None, **changes):
    """What the client's own accumulator makes of the stream; its types judge each event."""
    found = frames(events, reason, stop, **changes)
    assert [name for name, _ in found] == [data["type"] for _, data in found]
    return anthropic_types.accumulated(data for _, data in found)


def test_the_order_of_events_is_anthropics():
    names = [(name, data.get("index")) for name, data in frames([THOUGHT, TEXT, CALL, INPUT])]
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert names == [
        *[("message_start", None)],
        *[(start, 0), (delta, 0), (delta, 0), (stop, 0)],  # the second delta is the signature
        *[(start, 1), (delta, 1), (stop, 1)],
        *[(start, 2), (delta, 2), (delta, 2), (stop, 2)],  # the first piece of a call's input is empty
        *[("message_delta", None), ("message_stop", None)],
    ]


def test_blocks_have_their_types_and_a_calls_input_is_an_object():
    said = whole([THOUGHT, TEXT, CALL, INPUT, Call(1, "g"), Arguments(1, "{}")])
    ids = [block["id"] for block in said["content"][2:]]
    assert said["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": ids[0], "name": "f", "input": {"a": [1, "x"]}},
        {"type": "tool_use", "id": ids[1], "name": "g", "input": {}},
    ]
    assert all(one.startswith("toolu_") for one in ids)
    assert len(set(ids)) == 2
    assert anthropic_types.message(said).id == "msg_r"


def test_input_tokens_are_without_those_from_the_cache():
    usage = {"input_tokens": 6, "output_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}
    usage |= {"output_tokens_details": {"thinking_tokens": 2}}
    assert whole([TEXT])["usage"] == usage
    assert frames([TEXT])[-2][1]["usage"] == usage


@pytest.mark.parametrize(
    ("events", "reason", "stop", "said"),
    [
        ([TEXT], "stop", None, ("end_turn", None)),
        ([TEXT], "stop", "END", ("stop_sequence", "END")),
        ([TEXT, CALL, INPUT], "stop", None, ("tool_use", None)),
        ([CALL, INPUT], "stop", "END", ("stop_sequence", "END")),
        ([TEXT], "length", None, ("max_tokens", None)),
        ([CALL, Arguments(0, '{"a"')], "length", None, ("max_tokens", None)),
        ([], "stop", None, ("end_turn", None)),
    ],
)
def test_an_answer_says_why_it_ended(events, reason, stop, said):
    one, other = whole(events, reason, stop), frames(events, reason, stop)[-2][1]["delta"]
    assert (one["stop_reason"], one["stop_sequence"]) == said
    assert (other["stop_reason"], other["stop_sequence"]) == said


def test_an_answer_that_the_context_cuts_says_that():
    assert whole([TEXT], "length", cut_by_context=True)["stop_reason"] == "model_context_window_exceeded"


def test_thinking_that_is_not_wanted_leaves_an_empty_block():
    assert whole([THOUGHT, TEXT], hides_thinking=True)["content"][0] == {"type": "thinking", "thinking": "", "signature": ""}
    assert "hm" not in json.dumps(frames([THOUGHT, TEXT], hides_thinking=True))


@pytest.mark.parametrize("text", ['{"a": nope}', '{"a": NaN}', '["a"]', '{"a": 1'])
def test_arguments_that_are_no_object_are_an_error_not_a_broken_block(text):
    for written in (whole, frames):
        with pytest.raises(RequestFailed, match="the model called 'f' with arguments that are not"):
            written([CALL, Arguments(0, text)])


FORMS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>',
    "llama3_json": '{"name": "f", "parameters": {"n": 1}}',
    "mistral": '[TOOL_CALLS]f[ARGS]{"n": 1}',
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"n": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"n": 1}}]',
    "phi4_mini_json": 'functools[{"name": "f", "arguments": {"n": 1}}]',
    "pythonic": "[f(n=1)]",
}


@pytest.mark.parametrize("name", FORMS)
def test_a_call_in_any_form_is_a_block_whole_and_streamed(name):
    form, wish = TOOL_FORMS[name], Wish(None, "free", {"f": {"properties": {"n": {"type": "integer"}}}})
    reading = Reading(lambda: form.parser(wish), form=form)
    one, other = (Messages(Head("r", 0, "m", False, used=lambda: USAGE, reading=reading)) for _ in range(2))
    said = json.loads(one.whole([Answer(Piece(FORMS[name]), "stop")], USAGE))
    assert [(block["type"], block["name"], block["input"]) for block in said["content"]] == [("tool_use", "f", {"n": 1})]
    assert said["stop_reason"] == "tool_use"
    out = b"".join(other.text(Piece(letter)) for letter in FORMS[name]) + other.finish("stop") + other.end(USAGE)
    streamed = anthropic_types.accumulated(json.loads(frame.partition("data: ")[2]) for frame in out.decode().split("\n\n")[:-1])
    assert streamed["content"] == said["content"]


PIECES = st.text('ab é\\"', min_size=1, max_size=5)


@st.composite
def answers(draw):
    """Events as a parser gives them, and how the answer ended."""
    events, calls = [], 0
    for kind in draw(st.lists(st.sampled_from((Reasoning, Content, Call)), max_size=6)):
        if kind is not Call:
            events += [kind(piece) for piece in draw(st.lists(PIECES, min_size=1, max_size=3))]
            continue
        text = json.dumps(draw(st.dictionaries(PIECES, st.lists(PIECES | st.integers() | st.none(), max_size=2), max_size=3)))
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        events += [Call(calls, "f"), *(Arguments(calls, piece) for piece in pieces if piece)]
        calls += 1
    cut = draw(st.booleans()) and events and isinstance(events[-1], Arguments)
    ends = st.sampled_from((("length", None), ("stop", "END")))
    return (events[:-1], *draw(ends)) if cut else (events, "stop", None)


@settings(max_examples=examples(60))
@given(answers())
def test_a_stream_that_the_client_accumulates_is_the_whole_answer(answer):
    assert accumulated(*answer) == {**whole(*answer), "stop_details": None}
