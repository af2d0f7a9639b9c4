"""Metric names, types, labels and buckets. The `vllm:*` twins are those existing dashboards, HPAs and pickers read.

Holds descriptions only; a door builds its own registry from them.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One family. `name` as exposed, without `_total` (counters) or `_bucket`; `buckets` upper bounds for histograms."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_MODEL: Final = ("model_name", "engine")
_TTFT_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)

REQUESTS_RUNNING: Final = Metric("vllm:num_requests_running", "gauge", "Requests with a row on the device", _MODEL)
REQUESTS_WAITING: Final = Metric("vllm:num_requests_waiting", "gauge", "Requests waiting for a row", _MODEL)
KV_USAGE: Final = Metric("vllm:kv_cache_usage_perc", "gauge", "KV blocks in use over all blocks, 0..1", _MODEL)
CACHE_CONFIG: Final = Metric("vllm:cache_config_info", "gauge", "KV cache shape", (*_MODEL, "block_size", "num_gpu_blocks"))
PROMPT_TOKENS: Final = Metric("vllm:prompt_tokens", "counter", "Prompt tokens of admitted requests", _MODEL)
GENERATION_TOKENS: Final = Metric("vllm:generation_tokens", "counter", "Tokens generated", _MODEL)
PREEMPTIONS: Final = Metric("vllm:num_preemptions", "counter", "Requests preempted and recomputed", _MODEL)
REQUEST_SUCCESS: Final = Metric("vllm:request_success", "counter", "Requests finished", (*_MODEL, "finished_reason"))
TIME_TO_FIRST_TOKEN: Final = Metric("vllm:time_to_first_token_seconds", "histogram", "Arrival to first token", _MODEL, _TTFT_BUCKETS)
_TOKENS: Final = tuple(float(2**power) for power in range(18))
_ITL_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_SECONDS: Final = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)
REQUEST_PROMPT_TOKENS: Final = Metric("vllm:request_prompt_tokens", "histogram", "Prompt tokens of a request", _MODEL, _TOKENS)
REQUEST_GENERATION_TOKENS: Final = Metric("vllm:request_generation_tokens", "histogram", "Answer tokens of a request", _MODEL, _TOKENS)
TIME_PER_OUTPUT_TOKEN: Final = Metric(
    "vllm:time_per_output_token_seconds", "histogram", "Mean time per token after the first, of a request", _MODEL, _ITL_BUCKETS
)
INTER_TOKEN_LATENCY: Final = Metric("vllm:inter_token_latency_seconds", "histogram", "Time between two tokens", _MODEL, _ITL_BUCKETS)
E2E_LATENCY: Final = Metric("vllm:e2e_request_latency_seconds", "histogram", "Arrival to last token", _MODEL, _SECONDS)
QUEUE_TIME: Final = Metric("vllm:request_queue_time_seconds", "histogram", "Arrival to row", _MODEL, _SECONDS)
PREFIX_QUERIES: Final = Metric("vllm:prefix_cache_queries", "counter", "Prompt tokens looked up in the prefix cache", _MODEL)
PREFIX_HITS: Final = Metric("vllm:prefix_cache_hits", "counter", "Prompt tokens found in the prefix cache", _MODEL)
# The value is a Unix time: of several series the newest counts.
LORA_INFO: Final = Metric(
    "vllm:lora_requests_info", "gauge", "Adapters at work", ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
)
ENGINE_HEARTBEAT_AGE: Final = Metric("pagoda_daemon_engine_heartbeat_age_seconds", "gauge", "Age of the engine's heartbeat", _MODEL)
STEP_AGE_RATIO: Final = Metric("pagoda_daemon_step_age_ratio", "gauge", "Age of the step under way over its predicted length", _MODEL)

# What a replica exports today.
DAEMON: Final = (
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    KV_USAGE,
    CACHE_CONFIG,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    PREEMPTIONS,
    PREFIX_QUERIES,
    PREFIX_HITS,
    REQUEST_SUCCESS,
    TIME_TO_FIRST_TOKEN,
)
# Named here, exported by nothing yet (docs/roadmap.md).
DAEMON_LATER: Final = (
    REQUEST_PROMPT_TOKENS,
    REQUEST_GENERATION_TOKENS,
    TIME_PER_OUTPUT_TOKEN,
    INTER_TOKEN_LATENCY,
    E2E_LATENCY,
    QUEUE_TIME,
    LORA_INFO,
    ENGINE_HEARTBEAT_AGE,
    STEP_AGE_RATIO,
)

GATEWAY_REQUESTS: Final = Metric("pagoda_gateway_requests", "counter", "Requests answered", ("service", "code"))
GATEWAY_HELD: Final = Metric("pagoda_gateway_held_requests", "gauge", "Requests held: no endpoint yet", ("service",))
GATEWAY_ENDPOINTS: Final = Metric("pagoda_gateway_endpoints", "gauge", "Endpoints known", ("service", "verdict"))
GATEWAY_REPICKS: Final = Metric("pagoda_gateway_repicks", "counter", "Requests picked again before a model byte", ("service", "reason"))
GATEWAY_HOLD_SECONDS: Final = Metric(
    "pagoda_gateway_hold_seconds", "histogram", "Time requests were held", ("service",), (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)
)
GATEWAY: Final = (GATEWAY_REQUESTS, GATEWAY_HELD, GATEWAY_ENDPOINTS, GATEWAY_REPICKS, GATEWAY_HOLD_SECONDS)

OPERATOR_RECONCILES: Final = Metric("pagoda_operator_reconciles", "counter", "Runs, by what came of them", ("outcome",))
OPERATOR_RECONCILE_SECONDS: Final = Metric(
    "pagoda_operator_reconcile_seconds",
    "histogram",
    "Length of a run",
    (),
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
OPERATOR_QUEUE: Final = Metric("pagoda_operator_queue", "gauge", "Keys that wait for a run")
OPERATOR_WRITES: Final = Metric("pagoda_operator_writes", "counter", "Requests that write to the API server", ("kind", "verb"))
OPERATOR_WATCH_AGE: Final = Metric("pagoda_operator_watch_age_seconds", "gauge", "Since the last event or bookmark", ("kind",))
SERVICE_REPLICAS: Final = Metric("pagoda_service_replicas", "gauge", "Replicas, by state", ("namespace", "service", "state"))
# Named here, exported by nothing yet (docs/roadmap.md).
OPERATOR_LATER: Final = (
    OPERATOR_RECONCILES,
    OPERATOR_RECONCILE_SECONDS,
    OPERATOR_QUEUE,
    OPERATOR_WRITES,
    OPERATOR_WATCH_AGE,
    SERVICE_REPLICAS,
)
