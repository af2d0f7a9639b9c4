"""Events of an answer: those that are put together from parts are, byte for byte, what the encoder writes."""

import json
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.api.openai.chat_replies import Chat
from pagoda_daemon.api.openai.logprobs import PromptToken, prompt_logprobs
from pagoda_daemon.api.openai.reading import Reading
from pagoda_daemon.api.openai.replies import (
    ChatChunk,
    ChatDelta,
    ChunkChoice,
    Completion,
    Head,
    TextChoice,
    TextEvents,
    TextReply,
    event,
)
from pagoda_daemon.core.messages import TokenLogprob
from pagoda_daemon.text.answer import Piece, Scored

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
NAMES = st.sampled_from(["m", '"\0"', '{"text":"\0"}', "\\u0000"])  # what might be taken for the place of the text


def general(dialect, head, text, index):
    """As the encoder writes it, from the types that are the wire's description."""
    usage = None if head.include_usage else msgspec.UNSET
    if dialect is Chat:
        return event(ChatChunk(**head.envelope("chatcmpl"), choices=(ChunkChoice(ChatDelta(content=text), None, index),), usage=usage))
    return event(TextReply(**head.envelope("cmpl"), choices=(TextChoice(text, None, index),), usage=usage))


def test_prompt_logprobs_list_as_many_as_were_asked_for_though_more_were_computed():
    """An echo with `logprobs` 3 computes three; who asks for one of them by `prompt_logprobs` gets that and the token itself."""
    scores = [TokenLogprob(-4.0, 5, ((7, -0.1), (8, -0.2), (9, -0.3)))]
    _, entry = prompt_logprobs((1, 2), scores, 1, lambda token: f"t{token}".encode())
    assert entry == {"2": PromptToken(-4.0, "t2", 5), "7": PromptToken(-0.1, "t7", 1)}


@pytest.mark.parametrize("dialect", [Chat, Completion])
@given(texts=st.lists(st.tuples(TEXT, st.integers(0, 3)), min_size=1, max_size=5), usage=st.booleans(), name=NAMES)
def test_events_of_text_are_what_the_encoder_writes(dialect, texts, usage, name):
    head = Head("id", 7, name, usage, fingerprint=name, choices=4)
    written = dialect(head)
    for text, index in texts:
        assert written.text(Piece(text), index) == general(dialect, head, text, index)


def test_tokens_that_wait_for_their_chunk_are_not_copied_for_each_token():
    """A parser may hold back a whole answer: 30,000 tokens were copied 30,000 times."""
    reading = Reading(lambda: SimpleNamespace(push=lambda _: [], finish=list))
    written = Chat(Head("id", 7, "m", include_usage=False, prompts=((1,),), reading=reading))
    held = written._ids[0], written._scored[0]
    for token in range(3):
        scored = Scored(token, 0, None)
        assert written.text(Piece("x", (scored,), (token,))) == b""
        assert (written._ids[0], written._scored[0]) == (list(range(token + 1)), [*held[1]])
        assert (written._ids[0] is held[0], written._scored[0] is held[1]) == (True, True)
    assert b'"token_ids":[0,1,2]' in written.finish("stop")


@given(TEXT)
def test_an_event_of_text_reads_back(text):
    frame = Chat(Head("id", 7, "m", include_usage=False)).text(Piece(text))
    assert frame.startswith(b"data: ")
    assert frame.count(b"\n") == 2
    assert frame.endswith(b"\n\n")
    assert json.loads(frame.removeprefix(b"data: "))["choices"][0]["delta"] == {"content": text}


def test_what_stands_around_the_text_is_written_once_for_each_choice():
    asked = []

    def write(text, index):
        asked.append(index)
        return msgspec.json.encode({"index": index, "text": text})

    events = TextEvents(write)
    assert [events.event(text, index) for text, index in (("a", 0), ('"', 1), ("\0", 0), ("b", 1))] == [
        b'{"index":0,"text":"a"}',
        b'{"index":1,"text":"\\""}',
        b'{"index":0,"text":"\\u0000"}',
        b'{"index":1,"text":"b"}',
    ]
    assert asked == [0, 1]
