"""Traces and timings: what they say of a request's life, to whom, and that they say nothing else."""

import hashlib
import json

import httpx
import openai
import pytest
from pagoda_contracts.launch import AuthConfig
from pagoda_daemon.api.access.caller import ANYBODY, Caller, Terms
from pagoda_daemon.api.openai.trace import Traces, timing, trace
from pagoda_daemon.core.errors import RequestNotFound
from pagoda_daemon.core.messages import Life, RowOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.metrics import Counts
from pagoda_daemon.metrics.records import Record, Ring
from starlette.requests import Request
from support.servers.replica import NAME, PATIENCE_S, replica_config, start_replica

PROMPT = "a beginning that comes twice, long enough for a block or two "
ID = "0" * 32


def record(**more):
    return Record(**{"request_id": ID, "arrived": 1.0, "submitted": 1.01, "prompt_tokens": 10, "max_tokens": 8, **more})


def test_timings_are_the_parts_of_a_requests_time():
    found = timing([record(first_token=1.5, ended=2.0, lives={0: Life(queued_ms=90.0, prefill_ms=400.0, cached_tokens=4, chunks=3)})])
    assert (found.prepare_ms, found.queue_ms, found.prefill_ms, found.decode_ms) == (10.0, 90.0, 400.0, 500.0)
    assert (found.ttft_ms, found.total_ms, found.cached_tokens, found.chunks) == (500.0, 1000.0, 4, 3)


def test_several_prompts_are_one_request():
    one = record(request_id=f"{ID}-0", first_token=1.5, ended=2.0, lives={0: Life(10.0, 1.0, 4, 6, 1, 0)})
    other = record(
        request_id=f"{ID}-1", submitted=1.02, first_token=1.2, lives={0: Life(5.0, 2.0, 3, 7, 2, 1), 1: Life(99, 99, 9, 1, 1, 0)}
    )
    found = timing([one, other])
    assert (found.prepare_ms, found.queue_ms, found.prefill_ms, found.ttft_ms) == (20.0, 10.0, 2.0, 200.0)
    assert (found.total_ms, found.decode_ms) == (None, None), "the other one runs still"
    assert (found.cached_tokens, found.chunks, found.preemptions) == (7, 4, 1)


def test_a_trace_of_a_request_under_way_says_what_is_known():
    found = trace(ID, [record(choices=2, ends={1: "stop"}, lives={1: Life(1.0, 2.0)})], now=3.0, unix=1003.0)
    assert (found.state, found.arrived_at) == ("running", 1001.0)
    assert [(answer.index, answer.finish_reason, answer.queue_ms) for answer in found.answers] == [(0, None, None), (1, "stop", 1.0)]


def test_the_ring_forgets_the_oldest_and_keeps_prompts_of_one_request_together():
    ring = Ring(most=3)
    for name in ("a-0", "a-1", "b", "c", "d"):
        ring.add(record(request_id=name))
    assert len(ring) == 3
    assert ring.get("a") == ()
    assert [len(ring.get(name)) for name in "bcd"] == [1, 1, 1]
    ring.add(record(request_id="d-1"))
    assert len(ring.get("d")) == 2


def test_the_ring_is_bounded_by_answers_too():
    ring = Ring(most=100, answers=10)
    for request in range(5):
        for prompt in range(4):
            ring.add(record(request_id=f"{request}-{prompt}"))
    assert [len(ring.get(str(request))) for request in range(5)] == [0, 0, 0, 4, 4]
    ring.add(record(request_id="many", choices=50))
    assert (len(ring), len(ring.get("many"))) == (1, 1), "the latest one is remembered, whatever it is"
    ring.add(record(request_id="next"))
    assert (ring.get("many"), len(ring.get("next"))) == ((), 1)


def test_what_a_refused_request_says_is_why():
    counts = Counts()
    held = counts.open(Submit(ID, (1,), Sampling(1)), 1.0, 1.0)
    held.reason, held.refusal = "refused", "load_shed"
    counts.close(held, 1.1)
    found = trace(ID, counts.recent.get(ID), 2.0, 2.0)
    assert (found.refusal, found.state, found.answers[0].finish_reason) == ("load_shed", "finished", "refused")


async def asked(ring, name, tenant=""):
    state = {"caller": Caller(ANYBODY, Terms(tenant=tenant))}
    scope = {"type": "http", "path_params": {"id": name}, "state": state, "headers": [], "method": "GET"}
    return json.loads((await Traces(ring).get(Request(scope))).body)


async def test_a_trace_is_for_its_tenant_alone():
    ring = Ring()
    ring.add(record(tenant="key:a"))
    assert (await asked(ring, ID, "key:a"))["id"] == ID
    for tenant in ("", "key:b", "key"):
        with pytest.raises(RequestNotFound) as refused:
            await asked(ring, ID, tenant)
        assert str(refused.value) == f"no request {ID!r} is remembered here", "as of one that never was"


@pytest.mark.parametrize("name", ["", "x", ID[:-1], f"{ID}-0", f"chatcmpl-{ID}0", "A" * 32, "../" + ID])
async def test_what_is_no_id_is_nobodys(name):
    ring = Ring()
    ring.add(record())
    assert (await asked(ring, f"chatcmpl-{ID}"))["id"] == ID
    with pytest.raises(RequestNotFound):
        await asked(ring, name)


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    with start_replica(
        replica_config(
            tmp_path_factory.mktemp("front"), step_ms=3.0, engine={"token_budget": 32, "max_concurrency": 16, "max_model_len": 4096}
        )
    ) as started:
        yield started


def ask(http, **more):
    return http.post("/v1/completions", json={"model": NAME, "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True, **more})


def test_a_finished_request_is_found_by_the_id_of_its_answer(http):
    ask(http)
    answer = ask(http, n=2).json()
    found = http.get(f"/v1/requests/{answer['id']}/trace").json()
    assert (found["state"], found["prompt_tokens"], found["completion_tokens"]) == ("finished", answer["usage"]["prompt_tokens"], 10)
    assert [one["finish_reason"] for one in found["answers"]] == ["length", "length"]
    assert found["timing"]["cached_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    times = found["timing"]
    parts = times["prepare_ms"] + times["queue_ms"] + times["prefill_ms"]
    assert 0 < parts <= times["ttft_ms"] <= times["total_ms"]
    assert PROMPT[:8] not in json.dumps(found)


def test_a_long_prompt_shows_its_chunks(http):
    answer = ask(http, prompt="new words " * 12)
    found = http.get(f"/v1/requests/{answer.json()['id']}/trace").json()
    tokens = answer.json()["usage"]["prompt_tokens"]
    assert found["timing"]["chunks"] == -(-tokens // 32) == 4
    assert found["answers"][0]["computed_tokens"] == tokens
    assert http.get(f"/v1/requests/{answer.headers['x-request-id']}/trace").json()["id"] == found["id"]


def test_an_unknown_request_is_a_404_in_openais_shape(http):
    answer = http.get(f"/v1/requests/{ID}/trace")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "request_not_found"


def test_timings_come_in_usage_where_they_are_asked_for_and_nowhere_else(http):
    assert "timing" not in ask(http).json()["usage"]
    times = ask(http, include_timing=True).json()["usage"]["timing"]
    assert 0 < times["ttft_ms"] <= times["total_ms"]
    assert (times["cached_tokens"] > 0, times["chunks"], times["preemptions"]) == (True, 1, 0)


def test_timings_come_with_the_usage_of_a_stream(replica):
    with openai.OpenAI(base_url=f"http://{replica.http}/v1", api_key="none", max_retries=0) as client:
        more = {"include_timing": True, "ignore_eos": True}
        messages = [{"role": "user", "content": "hi"}]
        options = {"include_usage": True}
        events = list(
            client.chat.completions.create(
                model=NAME, messages=messages, max_tokens=4, stream=True, stream_options=options, extra_body=more
            )
        )
    assert events[-1].usage.timing["decode_ms"] > 0
    assert all(event.usage is None for event in events[:-1])


def test_timings_without_a_place_to_be_are_refused(http):
    refused = ask(http, include_timing=True, stream=True)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "include_timing"


def test_a_request_under_way_can_be_asked_about(http, replica):
    body = {"model": NAME, "prompt": "y", "max_tokens": 4000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"http://{replica.http}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
        lines = answer.iter_lines()  # kept: its end would close the connection
        name = json.loads(next(lines).removeprefix("data: "))["id"]
        found = http.get(f"/v1/requests/{name}/trace").json()
    assert found["state"] == "running"
    assert found["timing"]["ttft_ms"] > 0
    assert found["timing"]["total_ms"] is None


def test_rows_that_say_nothing_new_leave_a_record_as_it_is():
    one = record()
    one.hear(RowOutput(ID, (1,)))
    assert (one.lives, one.reason) == ({}, "abort")


@pytest.mark.deep
def test_holders_of_different_keys_do_not_see_each_others_traces(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{hashlib.sha256(key.encode()).hexdigest()} {key}\n" for key in ("ann", "bob")))
    with start_replica(replica_config(tmp_path, auth=AuthConfig(keys_file=str(keys)))) as replica:
        url = f"http://{replica.http}/v1"
        body = {"model": NAME, "prompt": "x", "max_tokens": 2, "ignore_eos": True}
        mine = {"authorization": "Bearer ann"}
        name = httpx.post(f"{url}/completions", json=body, headers=mine, timeout=PATIENCE_S).json()["id"]
        asked = {
            key: httpx.get(f"{url}/requests/{name}/trace", headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_S)
            for key in ("ann", "bob", "eve")
        }
        assert [answer.status_code for answer in asked.values()] == [200, 404, 401]
        never = httpx.get(f"{url}/requests/{ID}/trace", headers={"authorization": "Bearer bob"}, timeout=PATIENCE_S).json()["error"][
            "message"
        ]
        assert asked["bob"].json()["error"]["message"] == never.replace(repr(ID), repr(name)), "as if it had never been"
