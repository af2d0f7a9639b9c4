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
DAEMON: Final = (
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    KV_USAGE,
    CACHE_CONFIG,
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    PREEMPTIONS,
    REQUEST_SUCCESS,
    TIME_TO_FIRST_TOKEN,
)

GATEWAY_REQUESTS: Final = Metric("pagoda_gateway_requests", "counter", "Requests answered", ("service", "code"))
GATEWAY_HELD: Final = Metric("pagoda_gateway_held_requests", "gauge", "Requests held: no endpoint yet", ("service",))
GATEWAY_ENDPOINTS: Final = Metric("pagoda_gateway_endpoints", "gauge", "Endpoints known", ("service", "verdict"))
GATEWAY_REPICKS: Final = Metric("pagoda_gateway_repicks", "counter", "Requests picked again before a model byte", ("service", "reason"))
GATEWAY_HOLD_SECONDS: Final = Metric(
    "pagoda_gateway_hold_seconds", "histogram", "Time requests were held", ("service",), (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)
)
GATEWAY: Final = (GATEWAY_REQUESTS, GATEWAY_HELD, GATEWAY_ENDPOINTS, GATEWAY_REPICKS, GATEWAY_HOLD_SECONDS)
