"""The real openai client as the judge: what it makes of answers, refusals, failures, silence, and how a cancelled call ends here.

The application on a real port, in this process, over an engine that says what each test tells it to.
"""

import asyncio
from contextlib import aclosing

import openai
import pytest
from pagoda_daemon.core.errors import Draining
from support.servers.scripted_engine import Engine, fails, ready_replica, refuses, replica_with_scripted_engine, says

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
async def engine():
    return Engine()


@pytest.fixture
def replica():
    return ready_replica()


@pytest.fixture
async def base_url(engine, replica):
    async with replica_with_scripted_engine(engine, replica) as url:
        yield url


@pytest.fixture
async def client(base_url):
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


async def ask(client, **changes):
    return await client.chat.completions.create(**{"model": "m", "messages": HI, **changes})


async def test_whole_streamed_parsed_and_raw_say_the_same(client):
    whole = await ask(client)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("hello", "stop")
    assert whole.system_fingerprint.startswith("fp_")
    async with await ask(client, stream=True) as stream:
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "hello"
    async with client.chat.completions.stream(model="m", messages=HI) as events:
        final = await events.get_final_completion()
    assert final.choices[0].message.content == "hello"
    parsed = await client.chat.completions.parse(model="m", messages=HI)
    assert parsed.choices[0].message.content == "hello"
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=HI)
    assert raw.parse().id == f"chatcmpl-{raw.headers['x-request-id']}"


async def test_the_synchronous_client_does_too(base_url):
    def both():
        with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            whole = client.completions.create(model="m", prompt=["a", "b"])
            with client.completions.create(model="m", prompt="a", stream=True) as stream:
                return [choice.text for choice in whole.choices], "".join(chunk.choices[0].text for chunk in stream)

    assert await asyncio.to_thread(both) == (["hello", "hello"], "hello")


@pytest.mark.deep
@pytest.mark.parametrize("reason", ["queue_full", "load_shed", "memory_pressure", "deadline", "draining"])
@pytest.mark.parametrize("stream", [False, True])
async def test_refusals_are_tried_again_as_often_as_the_client_means_to(client, engine, reason, stream):
    engine.script = [refuses(reason), refuses(reason), says("at last")]
    patient = client.with_options(max_retries=2)
    if reason == "draining":  # a second is the least that is told then
        patient = client.with_options(max_retries=1)
        engine.script = engine.script[1:]
    answer = await ask(patient, stream=stream)
    if stream:
        async with answer:
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
    else:
        text = answer.choices[0].message.content
    assert text == "at last"
    assert len(engine.submitted) == patient.max_retries + 1


@pytest.mark.parametrize(
    ("line", "kind", "code", "tries"),
    [
        (refuses("queue_full"), openai.RateLimitError, "overloaded", 3),
        (refuses("memory_pressure"), openai.InternalServerError, "overloaded", 3),
        (refuses("queue_full", 121.0), openai.RateLimitError, "overloaded", 1),
        (fails(), openai.InternalServerError, "internal_error", 1),
    ],
    ids=["crowded", "heavy", "long", "failed"],
)
async def test_what_is_raised_in_the_end_says_why_and_which_request(client, engine, line, kind, code, tries):
    engine.script = [line]
    patient = client.with_options(max_retries=2, timeout=600.0)
    waits = asyncio.ensure_future(ask(patient))
    if tries == 1 and kind is openai.RateLimitError:  # it would wait for two minutes, as told: it may be told no more
        await engine.closed.get()
        waits.cancel()
        assert len(engine.submitted) == 1
        return
    with pytest.raises(kind) as caught:
        await waits
    assert (caught.value.code, len(engine.submitted)) == (code, tries)
    assert caught.value.request_id == engine.submitted[-1].request_id


async def test_what_is_wrong_with_a_request_is_never_tried_again(client, engine):
    for changes in ({"messages": []}, {"model": "other"}, {"extra_body": {"temprature": 1}}):
        with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
            await ask(client.with_options(max_retries=2), **changes)
    assert engine.submitted == []


async def test_a_failure_in_mid_stream_is_raised_by_the_client_and_not_tried_again(client, engine):
    engine.script = [fails("hel")]
    seen = []
    async with await ask(client.with_options(max_retries=2), stream=True) as stream:
        with pytest.raises(openai.APIError, match="the device said no"):
            seen += [seen.append(chunk.choices[0].delta.content or "") async for chunk in stream]
    assert "".join(seen) == "hel"
    assert len(engine.submitted) == 1


async def test_a_replica_that_leaves_in_mid_stream_says_so(client, engine):
    engine.script = [lambda request_id: [*says("hel", None)(request_id), Draining("this replica had to stop")]]
    async with await ask(client, stream=True) as stream:
        with pytest.raises(openai.APIError, match="had to stop") as caught:
            [chunk async for chunk in stream]
    assert caught.value.code == "draining"


@pytest.mark.deep
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_waits_no_longer_frees_its_request(client, engine, replica, stream):
    engine.script = [says("", None)]
    with pytest.raises(openai.APITimeoutError):
        await ask(client.with_options(timeout=1.0), stream=stream)
    while replica.in_flight:
        await asyncio.sleep(0.001)
    assert [engine.closed.get_nowait() for _ in engine.submitted] == [(message.request_id, False) for message in engine.submitted]


async def test_a_call_that_is_cancelled_and_a_stream_that_is_left_free_their_requests(client, engine, replica):
    engine.script = [says("hel", None)]
    call = asyncio.ensure_future(ask(client))
    while not engine.submitted:
        await asyncio.sleep(0.001)
    call.cancel()
    assert await engine.closed.get() == (engine.submitted[0].request_id, False)
    stream = await ask(client, stream=True)
    async with aclosing(stream):
        await anext(aiter(stream))
    assert await engine.closed.get() == (engine.submitted[1].request_id, False)
    while replica.in_flight:
        await asyncio.sleep(0.001)
