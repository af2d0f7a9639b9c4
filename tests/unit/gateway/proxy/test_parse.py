"""What routing reads of a body: the conversation's key and the prompt's beginning, of each API; and what it makes of anything else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.prefix import MAX_TEXT_HASHES, Scope, chat_text, text_hashes
from pagoda_gateway.proxy import parse
from pagoda_gateway.proxy.fields import fields_of
from pagoda_gateway.proxy.parse import routing_request
from pagoda_gateway.requests.errors import BadRequest

SYSTEM, FIRST = "You are an agent. " * 80, "What is in this folder? " * 40
CHAT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": FIRST}]
ANSWER = {"role": "assistant", "content": "A file."}


def read(headers=None, tenant="t", **fields):
    return read_body(json.dumps({"model": "m"} | fields).encode(), headers, tenant)


def read_body(body, headers=None, tenant="t"):
    return routing_request(fields_of(body), body, headers or {}, tenant)


def test_the_names_are_the_daemons_own_and_belong_to_tenant_and_model():
    text = chat_text([("system", SYSTEM), ("user", FIRST)])
    assert read(messages=CHAT).prefix_hashes == tuple(text_hashes(Scope("t", "m"), text))
    assert len(read(messages=CHAT).prefix_hashes) == len(text.encode()) // 512
    assert read(messages=CHAT).prefix_hashes != read(messages=CHAT, tenant="u").prefix_hashes
    assert read(messages=CHAT).prefix_hashes != read(messages=CHAT, model="n").prefix_hashes


def test_of_every_api_the_beginning_is_read_and_grows_with_the_conversation():
    parts = [{"type": "text", "text": FIRST[:100]}, {"type": "image_url"}, {"type": "text", "text": FIRST[100:]}]
    wanted = read(messages=CHAT).prefix_hashes
    assert read(messages=[CHAT[0], {"role": "user", "content": parts}]).prefix_hashes == wanted
    assert read(system=SYSTEM, messages=CHAT[1:]).prefix_hashes == wanted
    assert read(system=[{"type": "text", "text": SYSTEM}], messages=CHAT[1:]).prefix_hashes == wanted
    assert read(instructions=SYSTEM, input=FIRST).prefix_hashes == wanted
    assert read(instructions=SYSTEM, input=[{"type": "message", "role": "user", "content": parts}]).prefix_hashes == wanted
    longer = read(messages=[*CHAT, ANSWER, {"role": "user", "content": FIRST}]).prefix_hashes
    assert longer[: len(wanted) - 1] == wanted[:-1]
    assert len(read(prompt=FIRST * 200).prefix_hashes) == MAX_TEXT_HASHES


def test_a_first_turn_is_no_session_and_later_turns_are_one_by_what_they_begin_with():
    second = [*CHAT, ANSWER, {"role": "user", "content": "And now?"}]
    third = [*second, ANSWER, {"role": "user", "content": "And then?"}]
    assert read(messages=CHAT).session == ""
    assert read(messages=second).session == read(messages=third).session != ""
    other = [CHAT[0], {"role": "user", "content": "Something else"}, ANSWER, {"role": "user", "content": "x"}]
    assert read(messages=other).session not in ("", read(messages=second).session)
    assert read(messages=second, tenant="u").session != read(messages=second).session


@pytest.mark.parametrize("given", [{"prompt_cache_key": "k"}, {"session_id": "k"}, {"headers": {"x-session-id": "k"}}], ids=str)
def test_an_id_that_the_client_sends_is_the_session_from_the_first_turn_on(given):
    assert read(messages=CHAT, **given).session == read(messages=[*CHAT, ANSWER], **given).session
    assert read(messages=CHAT, **given).session == read(prompt_cache_key="k").session
    assert read(messages=CHAT, **given).session != read(messages=CHAT, **given, tenant="u").session
    assert read(prompt_cache_key="session-1").session != read(prompt_cache_key="session-12").session


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("given", [[{}], {"a": 1}, 7, "k" * (2 << 20)], ids=["list", "object", "number", "long"])
def test_an_id_that_is_no_text_or_a_huge_one_is_not_decoded(given, monkeypatch):
    decoded = []
    monkeypatch.setattr(parse, "_value", lambda raw: decoded.append(bytes(raw)))
    assert read(session_id=given, prompt_cache_key=given).session == ""
    assert set(decoded) <= {b"null"}


@given(st.dictionaries(st.sampled_from(["messages", "input", "prompt", "system", "instructions", "session_id", "prompt_cache_key"]), JSON))
def test_whatever_the_other_fields_hold_the_request_goes_on(fields):
    assert read(**fields).model == "m"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"model": 1}', b'{"model": ""}', b'{"model": "m", "messages": [}', b"\xff"])
def test_a_body_that_names_no_model_is_refused(body):
    with pytest.raises(BadRequest):
        read_body(body)


def test_a_body_too_large_to_be_read_goes_by_the_session_that_it_names():
    large = read(prompt="x" * (2 << 20), prompt_cache_key="k")
    assert (large.prefix_hashes, large.session) == ((), read(prompt_cache_key="k").session)


@pytest.mark.parametrize(
    ("part", "most"),
    [("{}", 1 << 14), ("[]", 1 << 14), ('{"text":"a"}', 1 << 14), ('"":0', 1 << 15)],
)
def test_a_body_of_very_many_tiny_parts_is_not_decoded_and_goes_by_the_session_that_it_names(part, most, monkeypatch):
    """2 MiB of them held the event loop for 0.17 s."""
    decoded = []
    value = parse._value
    monkeypatch.setattr(parse, "_value", lambda raw: decoded.append(len(bytes(raw))) or value(raw))
    content = ",".join([part] * most)
    inner = f"{{{content}}}" if part.startswith('"') else f"[{content}]"
    for parts, read_text in ((inner, False), (f'[{{"text":"{FIRST}"}}]', True)):
        body = f'{{"model":"m","session_id":"k","messages":[{{"role":"user","content":{parts}}}]}}'.encode()
        request = read_body(body)
        assert request.session == read(session_id="k").session
        assert (max(decoded) > 16) is read_text
        decoded.clear()


def test_a_prompts_length_is_guessed_by_its_text_and_of_an_unread_body_by_the_body():
    assert read(messages=CHAT).prompt_tokens == len(chat_text([("system", SYSTEM), ("user", FIRST)])) // 4
    assert read(input=[[1] * 100]).prompt_tokens > 50
    assert read(messages=[{"role": "user", "content": "x" * 3_000_000}]).prompt_tokens >= 750_000
