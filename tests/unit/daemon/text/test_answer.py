"""Text and log-probabilities of an answer: the same however the tokens come, cut alike, and nothing of a stop string leaks in either."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.api.openai.logprobs import chat_logprobs, prompt_logprobs, shown, text_logprobs
from pagoda_daemon.core.messages import TokenLogprob
from pagoda_daemon.text.answer import AnswerText, Piece, Scored, echo
from pagoda_daemon.text.detokenize import WindowDetokenizer
from pagoda_daemon.text.stops import StopMatcher

WORDS = ("a", "b", "ab", "", "ba", "é"[:0], "c")  # two tokens show nothing


def decode(ids):
    """Token 7 and 8 are the halves of one character."""
    text = "".join(WORDS[token] if token < 7 else chr(0xE000 + token) for token in ids)
    return text.replace("\ue007\ue008", "é").replace("\ue007", "\ufffd").replace("\ue008", "\ufffd")


def scores(ids):
    return [TokenLogprob(-float(at), 1) for at, _ in enumerate(ids)]


def pushed(ids, sizes, stops, **settings):
    """All pieces, until stopped, of an answer whose tokens come in steps of `sizes`."""
    answer = AnswerText(WindowDetokenizer(decode), StopMatcher(stops, include=settings.pop("include", False)), **settings)
    logprobs, pieces, at = scores(ids), [], 0
    for size in [*sizes, len(ids)]:
        if not answer.stopped and at < len(ids):
            pieces.append(answer.push(ids[at : at + size], logprobs[at : at + size]))
        at += size
    return answer, [*pieces, answer.end()]


IDS = st.lists(st.integers(0, 8), max_size=14)
SIZES = st.lists(st.integers(1, 4), max_size=8)
STOPS = st.lists(st.text("abcé", min_size=1, max_size=3), max_size=3)


@given(IDS, SIZES, STOPS, st.booleans(), st.integers(0, 4))
def test_text_and_scores_do_not_depend_on_the_steps(ids, sizes, stops, include, min_tokens):
    answer, pieces = pushed(ids, sizes, stops, include=include, min_tokens=min_tokens)
    once, whole = pushed(ids, [1] * len(ids), stops, include=include, min_tokens=min_tokens)
    assert answer.stopped == once.stopped
    assert "".join(piece.text for piece in pieces) == "".join(piece.text for piece in whole)
    assert [entry for piece in pieces for entry in piece.scored] == [entry for piece in whole for entry in piece.scored]


@given(IDS, SIZES, STOPS)
def test_scores_are_those_of_the_text_that_is_out(ids, sizes, stops):
    answer, pieces = pushed(ids, sizes, stops)
    out, seen = "", 0
    for piece in pieces[:-1]:
        out += piece.text
        seen += len(piece.scored)
        held = decode(ids[:seen])
        # Up to the stop string: the token that it begins in is the last one shown.
        assert held == out[: len(held)] or (answer.stopped and out == held[: len(out)])
    text = out + pieces[-1].text
    scored = [entry for piece in pieces for entry in piece.scored]
    assert [entry.logprob.logprob for entry in scored] == [-float(at) for at in range(len(scored))]
    assert all(entry.offset < len(text) for entry in scored) if answer.stopped else len(scored) == len(ids)
    assert [entry.offset for entry in scored] == sorted(entry.offset for entry in scored)


def test_a_stop_string_does_not_leak_by_its_tokens_logprobs():
    answer = AnswerText(WindowDetokenizer(decode), StopMatcher(["abc"]))
    pieces = [answer.push((token,), scores([token])) for token in (1, 0, 1, 6)]  # b a b c
    assert [(piece.text, len(piece.scored)) for piece in pieces] == [("b", 1), ("", 0), ("", 0), ("", 0)]
    assert answer.stopped
    assert answer.end() == Piece("", ())


def test_what_turns_out_to_be_no_stop_string_comes_with_its_scores():
    answer = AnswerText(WindowDetokenizer(decode), StopMatcher(["abc"]), offset=10)
    pieces = [answer.push((token,), scores([token])) for token in (0, 1, 0)]
    assert [(piece.text, [entry.offset for entry in piece.scored]) for piece in pieces] == [("", []), ("", []), ("ab", [10, 11])]
    assert answer.end().text == "a"


def test_up_to_min_tokens_no_stop_string_counts():
    answer = AnswerText(WindowDetokenizer(decode), StopMatcher(["b"]), min_tokens=2)
    assert [answer.push((token,), ()).text for token in (1, 1, 0, 1)] == ["b", "b", "a", ""]
    assert answer.stopped


def test_a_stop_string_that_begins_up_to_min_tokens_and_ends_later_counts():
    answer = AnswerText(WindowDetokenizer(decode), StopMatcher(["ba"]), min_tokens=2)
    assert [answer.push((token,), ()).text for token in (1, 1, 0)] == ["", "b", ""]
    assert answer.stopped


def test_what_is_held_back_up_to_min_tokens_is_out_at_the_end():
    answer = AnswerText(WindowDetokenizer(decode), StopMatcher(["ab"]), min_tokens=4)
    assert [answer.push((token,), ()).text for token in (0, 1, 0)] == ["", "ab", ""]
    assert answer.end().text == "a"
    assert not answer.stopped


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.integers(0, 8), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_the_first_stop_string_that_ends_behind_the_exempt_text_cuts(parts, exempt, stops):
    matcher, text, least = StopMatcher(stops), "".join(parts), len("".join(parts[:exempt]))
    out = "".join(matcher.push(part, ends=number >= exempt) for number, part in enumerate(parts)) + matcher.flush()
    ends = [end for end in range(least + 1, len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    longest = max((len(stop) for stop in stops if ends and text[: ends[0]].endswith(stop)), default=0)
    assert matcher.stopped == bool(ends)
    assert out == (text[: ends[0] - longest] if ends else text)


def test_an_echoed_prompt_has_offsets_and_no_score_for_its_first_token():
    ids = (2, 6, 7, 8, 0)
    found = echo("abcéa", ids, scores(ids[1:]), WindowDetokenizer(decode))
    assert [entry.offset for entry in found.scored] == [0, 2, 3, 3, 4]
    assert [entry.logprob and entry.logprob.logprob for entry in found.scored] == [None, -0.0, -1.0, -2.0, -3.0]
    assert echo("abcéa", ids, (), WindowDetokenizer(decode)) == Piece("abcéa", ())
    assert len(echo("a", (0,), (), WindowDetokenizer(decode)).scored) == 1


SPELLED = {1: b"x", 2: b"\xc3", 3: b"y", 4: b"x"}


def test_text_logprobs_list_the_chosen_token_even_if_it_is_none_of_the_best():
    scored = (Scored(1, 0, None), Scored(3, 1, TokenLogprob(-5.0, 9, ((1, -0.5), (2, -1.0), (4, -2.0)))))
    found = text_logprobs(scored, SPELLED.__getitem__)
    assert found.tokens == ["x", "y"]
    assert found.token_logprobs == [None, -5.0]
    assert found.text_offset == [0, 1]
    assert found.top_logprobs == [None, {"x": -0.5, "bytes:\\xc3": -1.0, "y": -5.0}]


def test_chat_logprobs_carry_bytes():
    found = chat_logprobs((Scored(2, 0, TokenLogprob(-1.0, 2, ((1, -0.5),))),), SPELLED.__getitem__)
    entry = found.content[0]
    assert (entry.token, entry.bytes, entry.logprob) == ("bytes:\\xc3", [0xC3], -1.0)
    assert [(best.token, best.bytes, best.logprob) for best in entry.top_logprobs] == [("x", [0x78], -0.5)]


def test_prompt_logprobs_are_vllms():
    found = prompt_logprobs((1, 3), (TokenLogprob(-5.0, 9, ((1, -0.5), (2, -1.0))),), 1, SPELLED.__getitem__)
    assert found[0] is None
    assert {key: (entry.logprob, entry.rank, entry.decoded_token) for key, entry in found[1].items()} == {
        "3": (-5.0, 9, "y"),
        "1": (-0.5, 1, "x"),
    }


def test_tokens_that_end_in_mid_character_are_distinguished():
    assert [shown(spelled) for spelled in (b"a", "é".encode(), b"\xc3", b"\xc4")] == ["a", "é", "bytes:\\xc3", "bytes:\\xc4"]
