"""A stream goes on at another replica: its events are those of an undisturbed run, byte for byte, wherever it was cut."""

import hashlib
import re

import pytest
from pagoda_contracts.names import HEADER_ANSWERED, ROLE_GATEWAY
from pagoda_contracts.notes import MAX_ANSWERED, NOTE
from pagoda_daemon.api.openai import requests
from support.clients.notes import ASKS, Noted, body_of, continued
from support.kube.issuer import Issuer
from support.servers.local_replica import NAME, local_replica

KEY = b"k" * 40
HI = [{"role": "user", "content": "hi"}]
CHAT = {"model": NAME, "messages": HI, "max_tokens": 14, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}
CASES = {
    "chat": ("/v1/chat/completions", CHAT | USAGE),
    "seed of ours": ("/v1/chat/completions", CHAT | {"temperature": 1.0}),
    "completion": ("/v1/completions", {"model": NAME, "prompt": "x", "max_tokens": 14, "seed": 5, **USAGE}),
    "stop string": ("/v1/completions", {"model": NAME, "prompt": "x", "max_tokens": 40, "stop": "w5"}),
    "logprobs": ("/v1/completions", {"model": NAME, "prompt": "x", "max_tokens": 9, "logprobs": 2, "return_token_ids": True}),
    "response": ("/v1/responses", {"model": NAME, "input": "hi", "max_output_tokens": 14}),
    "message": ("/v1/messages", {"model": NAME, "messages": HI, "max_tokens": 14}),
}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture
async def gateway(issuer):
    """Posts to a replica with the gateway's token, or another's."""
    async with local_replica(auth=issuer.config()) as replica:

        async def post(path, body, headers, role=ROLE_GATEWAY):
            return await replica.post(path, body, authorization=f"Bearer {issuer.token(role)}", **headers)

        yield post
        await replica.at_rest()


def content(events):
    """What does not depend on when it was said."""
    return re.sub(rb'"completed_at":\d+', b"", events)


async def test_the_rest_is_the_rest_wherever_it_was_cut(gateway):
    """Also where the continuation breaks in its turn."""
    for name, (path, fields) in CASES.items():
        status, stream = await gateway(path, body_of(fields), ASKS)
        noted = Noted.of(stream)
        assert (name, status, noted.whole) == (name, 200, True)
        cuts = noted.cuts()
        assert len(cuts) > 1  # on a busy machine several tokens are said at once
        for at in {cuts[0], cuts[len(cuts) // 2], cuts[-2], cuts[-1]}:
            status, stream = await gateway(path, *continued(fields, noted.record(at)))
            rest = Noted.of(stream)
            assert (name, status, rest.whole, content(rest.events)) == (name, 200, True, content(noted.after(at)))
            if len(rest.parts) > 1:
                _, stream = await gateway(path, *continued(fields, noted.record(at) + b"\n" + rest.record(1)))
                assert content(Noted.of(stream).events) == content(rest.after(1))


WRONG = (
    (lambda record: record.replace(b'"model":""', b'"model":"other"'), 409, "cannot_continue"),
    (lambda record: record.replace(b'"ids":[', b'"ids":[99999,'), 400, "invalid_value"),
    (lambda record: record.partition(b"\n")[2], 400, "invalid_value"),
    (lambda record: record + b"\n", 400, "invalid_value"),
)


async def test_what_is_no_answer_of_this_model_is_refused(gateway):
    path, fields = CASES["chat"]
    _, stream = await gateway(path, body_of(fields), ASKS)
    for change, status, code in WRONG:
        found, reply = await gateway(path, *continued(fields, change(Noted.of(stream).record(3))))
        assert (found, reply["error"]["code"]) == (status, code)


async def test_a_body_as_large_as_it_may_be_can_be_continued(gateway, monkeypatch):
    """What was answered stands behind it, and has a limit of its own."""
    path, fields = CASES["chat"]
    _, stream = await gateway(path, body_of(fields), ASKS)
    noted = Noted.of(stream)
    body, headers = continued(fields, noted.record(3))
    monkeypatch.setattr(requests, "MAX_BODY", len(body_of(fields)))
    status, rest = await gateway(path, body, headers)
    assert status == 200
    assert content(Noted.of(rest).events) == content(noted.after(3))
    status, reply = await gateway(path, b" " + body, headers)
    assert (status, reply["error"]["code"]) == (413, "request_too_large")
    status, reply = await gateway(path, b" " * (len(body) + MAX_ANSWERED), headers | {HEADER_ANSWERED: str(1 << 40)})
    assert (status, reply["error"]["code"]) == (413, "request_too_large")
    status, reply = await gateway(path, b" " + body, headers | {HEADER_ANSWERED: "9" * 5000})
    assert (status, reply["error"]["code"]) == (413, "request_too_large")


async def test_what_cannot_be_continued_has_notes_without_tokens(gateway):
    """They have what was used, as all streams that a gateway asks for."""
    for more in ({"n": 2}, {"prompt": ["x", "y"]}, {"echo": True}):
        status, stream = await gateway("/v1/completions", body_of({"model": NAME, "prompt": "x", "max_tokens": 4} | more), ASKS)
        noted = Noted.of(stream)
        assert (status, noted.whole, noted.cuts()) == (200, True, [])
        assert noted.parts[-1][1].used.answer == (4 if "echo" in more else 8)


async def test_only_a_gateway_is_sent_tokens_and_believed_what_was_answered(issuer, monkeypatch):
    """A caller with a key of its own reads the same stream as ever, and what it adds to a body makes the body wrong."""
    keys = issuer.file.with_name("keys")
    keys.write_text(hashlib.sha256(KEY).hexdigest())
    async with local_replica(auth=issuer.config(keys_file=str(keys))) as replica:
        key = {"authorization": f"Bearer {KEY.decode()}"}
        path, fields = CASES["chat"]
        status, stream = await replica.post(path, body_of(fields), **key, **ASKS)
        assert (status, NOTE in stream) == (200, False)
        body, headers = continued(fields, b'{"ids":[1]}')
        status, _ = await replica.post(path, body, **key, **headers)
        assert status == 400
        monkeypatch.setattr(requests, "MAX_BODY", len(body) - 1)
        status, _ = await replica.post(path, body, **key, **headers)
        assert status == 413
        await replica.at_rest()
