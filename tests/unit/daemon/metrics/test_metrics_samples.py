"""Every sample of /metrics after known requests: a real front and engine over a simulated device, by a clock that the test moves.

The clock moves by an eighth of a second for each step of the device and by a sixty-fourth while a request is read, so every time below is
exact. What a scrape shows is compared as a whole: a family that is added must be written down here, with its value and its unit.
"""

import asyncio
import collections
import threading
import time
from dataclasses import replace

import httpx
import pytest
from pagoda_contracts import metrics as names
from pagoda_contracts.launch import Fault, SloConfig
from pagoda_contracts.names import HEADER_DEADLINE
from pagoda_daemon.api.http import app, measured
from pagoda_daemon.api.routes import completions, generation, preparing, submitting
from pagoda_daemon.engine import client
from pagoda_daemon.engine.loop import Engine
from pagoda_daemon.health.deep_check import DeepChecks
from pagoda_daemon.simulated.device.worker import SimulatedWorker, simulated_limits
from pagoda_daemon.simulated.replicas import engine as simulated
from prometheus_client.parser import text_string_to_metric_families
from support.servers.local_front import NAME, local_config, local_front

BORN, UNIX = 1024.0, 1.7e9
STEP, READ = 0.125, 0.015625
PATIENCE_S = 300.0


class Clock:
    """In place of the module `time`: both clocks stand but for `pass_`."""

    def __init__(self):
        self.passed = 0.0

    def monotonic(self):
        return BORN + self.passed

    def time(self):
        return UNIX + self.passed

    def pass_(self, seconds):
        self.passed += seconds

    def __getattr__(self, name):
        return getattr(time, name)


class Stage:
    """The device waits in each step for the test; the engine says when it has heard a request, taken a step's result and beaten."""

    def __init__(self):
        self.clock = Clock()
        self.free = True
        self.loop = asyncio.get_running_loop()
        self.landed, self.heard, self.beaten = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._begun, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self._lengths = collections.deque()

    def pause(self, seconds):
        """On the device's thread: a step of this length, if the test holds the device."""
        if not self.free:
            self._begun.release()
            self._go.acquire()
            self._lengths.append(seconds)

    def land(self):
        """On the engine's thread, as it takes a step's result. The step's length passes here, so that no heartbeat comes in between."""
        if self._lengths:
            self.clock.pass_(self._lengths.popleft())

    def announce(self, event):
        self.loop.call_soon_threadsafe(event.set)

    def read(self, *given):
        """`submissions`, which takes its time."""
        self.clock.pass_(READ)
        return submitting.submissions(*given)

    def sent_by(self, http, prompt, count, headers=None, **more):
        """What becomes of a request, under way."""
        body = {"model": NAME, "prompt": [*prompt], "max_tokens": count, "stream": True, **more}
        return asyncio.create_task(http.post("/v1/completions", json=body, headers=headers))

    async def heard_of(self, *request, **more):
        """The same, once the engine has it."""
        self.heard.clear()
        sent = self.sent_by(*request, **more)
        await asyncio.wait_for(self.heard.wait(), PATIENCE_S)
        return sent

    async def begun(self):
        assert await asyncio.to_thread(self._begun.acquire, timeout=PATIENCE_S)
        self._begun.release()

    async def step(self):
        """The device's step ends, and everybody has heard of it."""
        await asyncio.to_thread(self._begun.acquire, timeout=PATIENCE_S)
        self.landed.clear()
        self._go.release()
        await asyncio.wait_for(self.landed.wait(), PATIENCE_S)
        for _ in range(50):
            await asyncio.sleep(0)

    async def beat(self, seconds):
        """The engine's next heartbeat, so many seconds later."""
        self.beaten.clear()
        self.clock.pass_(seconds)
        await asyncio.wait_for(self.beaten.wait(), PATIENCE_S)

    def leave(self):
        self.free = True
        self._go.release(1000)


@pytest.fixture
async def stage(monkeypatch):
    made = Stage()

    class ScriptedEngine(Engine):
        """Says what happened once it has planned what follows: the clock may move then."""

        def _hear(self, message):
            super()._hear(message)
            self.news = made.heard

        def _take(self, outcome):
            made.land()
            super()._take(outcome)

        def _commit(self, state, result):
            super()._commit(state, replace(result, compiled=2 * len(result.errors)))
            self.news = made.landed

        def _next(self):
            super()._next()
            if (news := vars(self).pop("news", None)) is not None:
                made.announce(news)

        def _beat(self):
            super()._beat()
            made.announce(made.beaten)

    class PacedWorker(SimulatedWorker):
        @classmethod
        def of(cls, config):
            return cls(simulated_limits(config), STEP * 1000, made.pause)

    async def silent(_canary):
        await asyncio.Event().wait()

    for module in (app, generation, measured, client, preparing, simulated):
        monkeypatch.setattr(module, "time", made.clock)
    monkeypatch.setattr(completions, "submissions", made.read)
    monkeypatch.setattr(simulated, "SimulatedWorker", PacedWorker)
    monkeypatch.setattr(simulated.LocalEngine, "engine_type", ScriptedEngine)
    monkeypatch.setattr(DeepChecks, "run", silent)
    yield made
    made.leave()


async def scrape(http):
    """Samples by name and the labels that are not everywhere; of a histogram its count, its sum, and the bounds that hold something new."""
    answer = await http.get("/metrics")
    found, filled = {}, {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if (key, value) not in (("model_name", NAME), ("engine", "0"))}
            bound = labels.pop("le", None)
            key = " ".join((sample.name, *(f"{name}={value}" for name, value in sorted(labels.items()))))
            if bound is None:
                found[key] = sample.value
            elif sample.value > sum(filled.get(key, {}).values()):
                filled.setdefault(key, {})[bound] = sample.value - sum(filled.get(key, {}).values())
    return found | filled | {"text": answer.text}


def known_config(folder):
    """One row, four blocks, prompts in chunks of 32; the thirteenth step of a request gives no number."""
    config = local_config(
        folder,
        engine={"max_model_len": 64, "max_concurrency": 1, "token_budget": 32},
        slo=SloConfig(ttft="500ms", itl="200ms"),
        revision="r7",
    )
    return config.model_copy(update={"testing": config.testing.model_copy(update={"faults": (Fault(at_step=12, kind="nan"),)})})


@pytest.fixture
async def http(stage, tmp_path):
    async with local_front(known_config(tmp_path)) as front:
        async with httpx.AsyncClient(base_url=f"http://{front.http}", timeout=PATIENCE_S) as made:
            made.front = front
            stage.free = False
            yield made
        stage.leave()


@pytest.fixture
async def samples(stage, http):
    """Two scrapes: in the step after the first request's first token, and at the end.

    Five requests: 40 prompt tokens, 5 of an answer; the same prompt for two answers of 2, sent in the first step of the other; 60 tokens
    that share nothing with them, 1 of an answer; 5, whose answer is no number; 5, whose deadline is too near.
    """
    first = await stage.heard_of(http, range(40), 5)
    await stage.begun()
    second = await stage.heard_of(http, range(40), 2, n=2)
    for _ in range(2):
        await stage.step()
    stage.clock.pass_(STEP / 2)
    between = await scrape(http)
    for _ in range(4):
        await stage.step()
    assert (await first).status_code == 200
    for _ in range(4):
        await stage.step()
    assert (await second).status_code == 200
    for prompt, steps, status in ((range(100, 160), 2, 200), (range(5), 1, 500)):
        other = stage.sent_by(http, prompt, 1)
        for _ in range(steps):
            await stage.step()
        assert (await other).status_code == status
    assert (await stage.sent_by(http, range(5), 1, {HEADER_DEADLINE: "100"})).status_code == 503
    stage.free = True
    canary = http.front.front._deep_checks
    await canary._check(await canary._record())
    await stage.beat(0.25)
    stage.clock.pass_(0.125)
    return between, await scrape(http)


BETWEEN = {
    "vllm:num_requests_running": 1,
    "vllm:num_requests_waiting": 2,
    "vllm:num_requests_waiting_by_reason reason=capacity": 1,
    "vllm:num_requests_waiting_by_reason reason=deferred": 1,
    "vllm:kv_cache_usage_perc": 0.75,
    "pagoda_daemon_waiting_tokens": 40,
    "pagoda_daemon_kv_blocks state=used": 3,
    "pagoda_daemon_kv_blocks state=free": 1,
    "pagoda_daemon_steps_total": 2,
    "pagoda_daemon_in_flight_requests": 2,
    "vllm:prompt_tokens_total": 40,
    "vllm:generation_tokens_total": 1,
}
"""What changes again: the first request has its first token, the second one's second answer waits for the prompt that it shares."""

AT_LAST = {
    "vllm:cache_config_info block_size=16 num_gpu_blocks=4": 1,
    "vllm:engine_sleep_state sleep_state=awake": 1,
    "vllm:prefix_cache_queries_total": 185,
    "vllm:prefix_cache_hits_total": 78,
    "vllm:corrupted_requests_total": 1,
    "pagoda_daemon_kv_blocks state=free": 4,
    "pagoda_daemon_steps_total": 13,
    "pagoda_daemon_late_compilations_total": 2,
    "pagoda_daemon_phase phase=ready": 1,
    "pagoda_daemon_load_progress_ratio": 1,
    "pagoda_daemon_deep_checks_total outcome=right": 1,
    "vllm:prompt_tokens_total": 140,
    "vllm:prompt_tokens_cached_total": 39,
    "vllm:prompt_tokens_cached_by_source_total source=device": 39,
    "vllm:prompt_tokens_by_source_total source=local_compute": 101,
    "vllm:prompt_tokens_by_source_total source=local_cache_hit": 39,
    "vllm:generation_tokens_total": 10,
    "vllm:request_success_total finished_reason=length": 4,
    "vllm:request_success_total finished_reason=error": 1,
    "pagoda_daemon_refusals_total reason=deadline": 1,
    "pagoda_daemon_slo_target_seconds slo=ttft": 0.5,
    "pagoda_daemon_slo_target_seconds slo=itl": 0.2,
    "pagoda_daemon_slo_requests_total met=true slo=ttft": 2,
    "pagoda_daemon_slo_requests_total met=true slo=itl": 2,
    "pagoda_daemon_slo_requests_total met=true slo=all": 2,
    "pagoda_daemon_slo_requests_total met=false slo=ttft": 2,
    "pagoda_daemon_slo_requests_total met=false slo=itl": 2,
    "pagoda_daemon_slo_requests_total met=false slo=all": 2,
    "pagoda_daemon_goodput_tokens_total": 6,
    "pagoda_daemon_build_info revision=r7 version=0.2.0": 1,
    "http_requests_total handler=/metrics method=GET status=2xx": 1,
    "http_requests_total handler=/v1/completions method=POST status=2xx": 3,
    "http_requests_total handler=/v1/completions method=POST status=5xx": 2,
    "pagoda_daemon_responses_total status=200": 4,
    "pagoda_daemon_responses_total status=500": 1,
    "pagoda_daemon_responses_total status=503": 1,
}
"""Every sample but those of a histogram that is not 0, by its labels."""

HISTOGRAMS = {
    "vllm:inter_token_latency_seconds": (6, 0.8125, {"0.15": 5, "0.2": 1}),
    "pagoda_daemon_inter_token_latency_seconds": (6, 0.8125, {"0.15": 5, "0.25": 1}),
    "vllm:iteration_tokens_total": (13, 113, {"1.0": 8, "8.0": 2, "32.0": 3}),
    "pagoda_daemon_step_seconds": (13, 1.703125, {"0.15": 12, "0.25": 1}),
    "vllm:kv_block_lifetime_seconds": (6, 4.9375, {"0.2": 1, "0.5": 1, "1.0": 1, "2.0": 3}),
    "vllm:kv_block_idle_before_evict_seconds": (6, 1.703125, {"0.2": 1, "0.5": 5}),
    "vllm:kv_block_reuse_gap_seconds": (6, 3.234375, {"0.5": 3, "1.0": 3}),
    "vllm:time_to_first_token_seconds": (3, 1.5, {"0.5": 2, "1.0": 1}),
    "pagoda_daemon_time_to_first_token_seconds": (3, 1.5, {"0.3": 2, "1.0": 1}),
    "vllm:request_time_per_output_token_seconds": (2, 0.515625, {"0.15": 1, "0.4": 1}),
    "pagoda_daemon_time_per_output_token_seconds": (2, 0.515625, {"0.15": 1, "0.5": 1}),
    "vllm:e2e_request_latency_seconds": (3, 2.4375, {"0.3": 1, "1.0": 1, "1.5": 1}),
    "vllm:request_inference_time_seconds": (3, 1.578125, {"0.3": 1, "0.5": 1, "1.0": 1}),
    "vllm:request_decode_time_seconds": (3, 0.9375, {"0.3": 1, "0.5": 1, "0.8": 1}),
    "pagoda_daemon_prepare_seconds": (5, 0.078125, {"0.02": 5}),
    "vllm:request_prompt_tokens": (3, 140, {"50.0": 2, "+Inf": 1}),
    "vllm:request_generation_tokens": (3, 10, {"1.0": 1, "5.0": 2}),
    "vllm:request_max_num_generation_tokens": (5, 10, {"1.0": 3, "2.0": 1, "5.0": 1}),
    "vllm:request_params_n": (5, 6, {"1.0": 4, "2.0": 1}),
    "vllm:request_params_max_tokens": (5, 10, {"1.0": 3, "2.0": 1, "5.0": 1}),
    "vllm:request_prefill_kv_computed_tokens": (3, 101, {"1.0": 1, "50.0": 1, "+Inf": 1}),
    "vllm:request_queue_time_seconds": (5, 1.875, {"0.3": 3, "1.0": 1, "1.5": 1}),
    "pagoda_daemon_queue_seconds": (5, 1.875, {"0.0005": 3, "1.0": 1, "1.5": 1}),
    "vllm:request_prefill_time_seconds": (5, 0.890625, {"0.3": 5}),
    "pagoda_daemon_prefill_seconds": (5, 0.890625, {"0.15": 3, "0.3": 2}),
    "pagoda_daemon_prefill_chunks": (5, 7, {"1.0": 3, "2.0": 2}),
    "vllm:request_num_preemptions": (5, 0, {"1.0": 5}),
    "http_request_duration_seconds handler=/metrics method=GET": (1, 0, {"0.1": 1}),
    "http_request_duration_seconds handler=/v1/completions method=POST": (5, 2.59375, {"0.1": 1, "0.5": 2, "1.0": 1, "+Inf": 1}),
}
"""Of each one that holds anything: how many values, their sum, and how many by bound. All times are seconds."""

NOT_BUILT = {
    names.EXTERNAL_QUERIES.name,
    names.EXTERNAL_HITS.name,
    names.MM_QUERIES.name,
    names.MM_HITS.name,
    names.DRAFTS.name,
    names.DRAFT_TOKENS.name,
    names.ACCEPTED_TOKENS.name,
    names.ACCEPTED_PER_POSITION.name,
}
ESTIMATES = {names.ESTIMATED_FLOPS.name, names.ESTIMATED_READS.name, names.ESTIMATED_WRITES.name}
DEVICE = {metric.name for metric in names.DAEMON if metric.name.startswith("pagoda_device_")}
ALWAYS_ZERO_HERE = {names.PREEMPTIONS.name, names.PREPARING.name, names.ADMISSION_REJECTIONS.name, *ESTIMATES, *DEVICE}
"""No request is preempted or turned away, no body needs a thread, NVML reads no device, and sizing does not know the model:
`test_a_preemption_is_counted_once_in_either_family`, test_preparing.py, test_metrics.py and test_work.py have these."""


def single(scraped):
    """What is no part of a histogram and not 0."""
    parts = {f"{metric.name}_{part}" for metric in names.DAEMON if metric.kind == "histogram" for part in ("count", "sum", "bucket")}
    return {key: value for key, value in scraped.items() if key != "text" and key.partition(" ")[0] not in parts and value}


def filled(scraped):
    """Each histogram that holds anything, as HISTOGRAMS has them."""
    found = {}
    for metric in names.DAEMON:
        for key, count in scraped.items():
            name, blank, labels = key.partition(" ")
            if metric.kind == "histogram" and name == f"{metric.name}_count" and count:
                of = {part: scraped[f"{metric.name}_{part}{blank}{labels}"] for part in ("sum", "bucket")}
                found[f"{metric.name}{blank}{labels}"] = (count, of["sum"], of["bucket"])
    return found


async def test_every_sample_has_the_value_that_the_requests_give_it(samples):
    between, end = samples
    assert {key: between[key] for key in BETWEEN} == BETWEEN
    # Of the engine's clock, which tells whole milliseconds: half a step of 125 ms old, predicted at 120 ms from the two before.
    assert between["pagoda_daemon_engine_heartbeat_age_seconds"] == pytest.approx(0.0625, abs=0.001)
    assert between["pagoda_daemon_step_age_ratio"] == pytest.approx(62.5 / 120, abs=0.01)
    seen = single(end)
    assert seen.pop("pagoda_daemon_engine_heartbeat_age_seconds") == pytest.approx(0.125, abs=0.001)
    unix = seen.pop("vllm:lora_requests_info max_lora=0 running_lora_adapters= waiting_lora_adapters=")
    assert unix == UNIX + 2.140625, "the time of the scrape, in seconds since 1970"
    process = {metric.name + ("_total" if metric.kind == "counter" else "") for metric in names.DAEMON_PROCESS}
    assert {key: value for key, value in seen.items() if key not in process} == AT_LAST
    assert process <= seen.keys()
    assert filled(end) == HISTOGRAMS
    every_family_shows_a_value(between, end)


def every_family_shows_a_value(between, end):
    """What is 0 throughout could be anything: a family that is added needs a request here that it tells of."""
    keys = {key.partition(" ")[0] for key in (*single(between), *single(end), *filled(end))}
    shown = keys | {key.removesuffix("_total") for key in keys}
    assert {metric.name for metric in names.DAEMON} - shown == NOT_BUILT | ALWAYS_ZERO_HERE
    exposed = {family.name for family in text_string_to_metric_families(end["text"])}
    assert exposed == {metric.name for metric in names.DAEMON}


async def test_a_preemption_is_counted_once_in_either_family(stage, tmp_path):
    config = local_config(tmp_path, engine={"max_model_len": 64, "max_concurrency": 2, "kv_bytes": 4 * 16 * 8})
    async with (
        local_front(config) as front,
        httpx.AsyncClient(base_url=f"http://{front.http}", timeout=PATIENCE_S) as http,
    ):
        stage.free = False
        first = await stage.heard_of(http, [1] * 10, 40)
        await stage.begun()
        second = await stage.heard_of(http, [2] * 10, 40)
        stage.leave()
        assert [(await one).status_code for one in (first, second)] == [200, 200]
        seen = await scrape(http)
    assert seen["vllm:generation_tokens_total"] == 80
    assert seen["vllm:num_preemptions_total"] == seen["vllm:request_num_preemptions_sum"] == 1
    assert seen["vllm:request_num_preemptions_count"] == 2
