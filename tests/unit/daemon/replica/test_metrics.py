"""/metrics of a real replica (real processes, simulated device) after requests of every kind of end."""

import threading
import time

import httpx
import pytest
from pagoda_contracts import metrics as names
from pagoda_contracts.launch import SloConfig
from prometheus_client.parser import text_string_to_metric_families
from support.servers.replica import NAME, PATIENCE_S, replica_config, start_replica

FIXED = {"model_name": NAME, "engine": "0"}


@pytest.fixture(scope="module")
def replica(tmp_path_factory):
    engine = {"max_model_len": 65_536}
    config = replica_config(tmp_path_factory.mktemp("front"), step_ms=2.0, engine=engine, slo=SloConfig(ttft="60s", itl="60s"))
    with start_replica(config) as started:
        yield started


def scrape(http):
    answer = http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found[(sample.name, *sorted(pair for pair in sample.labels.items() if pair not in FIXED.items()))] = sample.value
    return found


def grown(before, after, *key):
    return after[key] - before.get(key, 0)


def ask(http, **more):
    return http.post("/v1/completions", json={"model": NAME, "prompt": "x" * 60, "max_tokens": 8, "ignore_eos": True, **more})


def until(holds):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_request_is_found_in_every_family_that_describes_requests(http):
    ask(http, prompt="first of its kind " * 4)
    before = scrape(http)
    usage = ask(http, prompt="first of its kind " * 4).json()["usage"]
    after = scrape(http)
    assert grown(before, after, "vllm:request_success_total", ("finished_reason", "length")) == 1
    assert grown(before, after, "vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert grown(before, after, "vllm:generation_tokens_total") == 8
    cached = grown(before, after, "vllm:prompt_tokens_cached_total")
    assert 0 < cached < usage["prompt_tokens"], "the second one of its kind"
    assert grown(before, after, "vllm:prefix_cache_hits_total") == cached
    assert grown(before, after, "vllm:prompt_tokens_by_source_total", ("source", "local_compute")) == usage["prompt_tokens"] - cached
    assert grown(before, after, "vllm:inter_token_latency_seconds_count") == 7
    for metric in (names.TIME_TO_FIRST_TOKEN, names.E2E_LATENCY, names.QUEUE_TIME, names.PREFILL_TIME, names.DECODE_TIME):
        assert grown(before, after, f"{metric.name}_count") == 1, metric.name
    for metric in (names.INFERENCE_TIME, names.TIME_PER_OUTPUT_TOKEN, names.REQUEST_PROMPT_TOKENS, names.CHUNKS, names.FINE_PREFILL):
        assert grown(before, after, f"{metric.name}_count") == 1, metric.name
    parts = [grown(before, after, f"{metric.name}_sum") for metric in (names.FINE_QUEUE, names.FINE_PREFILL, names.FINE_PREPARE)]
    assert sum(parts) <= grown(before, after, f"{names.TIME_TO_FIRST_TOKEN.name}_sum"), "what the first token waited for"
    assert grown(before, after, "pagoda_daemon_slo_requests_total", ("met", "true"), ("slo", "all")) == 1
    assert grown(before, after, "pagoda_daemon_goodput_tokens_total") == 8


def test_a_stop_string_ends_a_request_as_stop(http):
    before = scrape(http)
    text = ask(http).json()["choices"][0]["text"]
    ask(http, stop=[text[2:4]])
    after = scrape(http)
    assert grown(before, after, "vllm:request_success_total", ("finished_reason", "stop")) == 1
    assert grown(before, after, "vllm:request_queue_time_seconds_count") == 2, "it tells its life too"


def test_several_prompts_and_answers_are_counted_one_by_one(http):
    before = scrape(http)
    usage = ask(http, prompt=["one prompt here", "two prompts there"], n=2).json()["usage"]
    after = scrape(http)
    assert grown(before, after, "vllm:request_success_total", ("finished_reason", "length")) == 4
    assert grown(before, after, "vllm:generation_tokens_total") == usage["completion_tokens"] == 32
    assert grown(before, after, "vllm:prompt_tokens_total") == usage["prompt_tokens"]
    assert grown(before, after, "vllm:request_params_n_sum") == 4
    assert grown(before, after, "vllm:inter_token_latency_seconds_count") == 28


def test_a_client_that_leaves_is_an_abort_and_no_latency(http, replica):
    before = scrape(http)
    endless = body(max_tokens=60_000)  # two minutes: it does not end before a busy machine has left it
    with httpx.stream("POST", f"http://{replica.http}/v1/completions", json=endless, timeout=PATIENCE_S) as answer:
        next(answer.iter_lines())
    until(lambda: grown(before, scrape(http), "vllm:request_success_total", ("finished_reason", "abort")) == 1)
    assert grown(before, scrape(http), "vllm:e2e_request_latency_seconds_count") == 0


def body(**more):
    return {"model": NAME, "prompt": "x", "stream": True, "ignore_eos": True, **more}


def test_steps_and_gaps_are_counted_under_concurrency(http, replica):
    before = scrape(http)

    def one():
        httpx.post(f"http://{replica.http}/v1/completions", json=body(max_tokens=50), timeout=PATIENCE_S).raise_for_status()

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: grown(before, scrape(http), "vllm:iteration_tokens_total_sum") >= 8 * 49)
    after = scrape(http)
    assert grown(before, after, "vllm:inter_token_latency_seconds_count") == 8 * 49
    steps = grown(before, after, "vllm:iteration_tokens_total_count")
    assert 50 <= steps <= 8 * 52
    assert grown(before, after, "pagoda_daemon_step_seconds_sum") >= steps * 0.002


def test_answers_are_filed_by_route_whatever_a_client_asks_for(http):
    before = scrape(http)
    http.get("/nowhere/at/all")
    http.get("/v1/models/none-such")
    http.delete("/v1/models")
    after = scrape(http)
    assert grown(before, after, "http_requests_total", ("handler", "none"), ("method", "GET"), ("status", "4xx")) == 1
    assert grown(before, after, "http_requests_total", ("handler", "/v1/models/{name:path}"), ("method", "GET"), ("status", "4xx")) == 1
    assert grown(before, after, "pagoda_daemon_responses_total", ("status", "405")) == 1
    handlers = {value for key in after if key[0] == "http_requests_total" for label, value in key[1:] if label == "handler"}
    assert not [handler for handler in handlers if "nowhere" in handler or "none-such" in handler]
