"""Metric names, types, labels and buckets. The `vllm:*` twins are those existing dashboards, HPAs and pickers read.

Descriptions only; a component builds its own registry from them.
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


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", text, (*_MODEL, *labels))


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "counter", text, (*_MODEL, *labels))


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", text, _MODEL, buckets)


# vLLM's buckets, to the digit: dashboards and autoscalers compute quantiles from them. TOKEN_BUCKETS end at the model's context.
TOKEN_BUCKETS: Final = tuple(float(digit * 10**power) for power in range(7) for digit in (1, 2, 5))
_TTFT: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    *(40.0, 80.0, 160.0, 640.0, 2560.0),
)
_ITL: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LATENCY: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS: Final = (1.0, *(float(2**power) for power in range(3, 15)))
_RESIDENCY: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)
# Ours: an H200 gives a token every 4 ms, which vLLM's buckets call "below 10 ms".
_FINE: Final = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.0035, 0.004, 0.0045, 0.005, 0.006, 0.007, 0.008, 0.01, 0.0125),
    *(0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_FINE_WAIT: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0),
)

REQUESTS_RUNNING: Final = _gauge("vllm:num_requests_running", "Requests with a row on the device")
REQUESTS_WAITING: Final = _gauge(
    "vllm:num_requests_waiting", "Requests waiting for a row, those that wait for a shared prompt or for their grammar included"
)
WAITING_BY_REASON: Final = _gauge(
    "vllm:num_requests_waiting_by_reason",
    "Waiting for a row (capacity), or for the prompt that another answer computes or a grammar to be compiled (deferred)",
    "reason",
)
KV_USAGE: Final = _gauge("vllm:kv_cache_usage_perc", "KV blocks in use over all blocks, 0..1")
CACHE_CONFIG: Final = _gauge("vllm:cache_config_info", "KV cache shape; always 1", "block_size", "num_gpu_blocks")
SLEEP_STATE: Final = _gauge("vllm:engine_sleep_state", "1 for the state that holds; this engine is always awake", "sleep_state")
# The value is a Unix time: of several series the newest counts.
LORA_INFO: Final = Metric(
    "vllm:lora_requests_info", "gauge", "Adapters at work", ("max_lora", "waiting_lora_adapters", "running_lora_adapters")
)
PROMPT_TOKENS: Final = _counter("vllm:prompt_tokens", "Prompt tokens of requests that gave a first token")
PROMPT_TOKENS_CACHED: Final = _counter("vllm:prompt_tokens_cached", "Prompt tokens that were known from an equal beginning")
CACHED_BY_SOURCE: Final = _counter(
    "vllm:prompt_tokens_cached_by_source",
    "Prompt tokens that were known, by where their KV lay: on the device; there is no other place yet",
    "source",
)
PROMPT_TOKENS_BY_SOURCE: Final = _counter("vllm:prompt_tokens_by_source", "Prompt tokens by where their KV came from", "source")
GENERATION_TOKENS: Final = _counter("vllm:generation_tokens", "Tokens generated")
REQUEST_SUCCESS: Final = _counter("vllm:request_success", "Answers that ended, by why", "finished_reason")
PREEMPTIONS: Final = _counter("vllm:num_preemptions", "Requests preempted and recomputed")
PREFIX_QUERIES: Final = _counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache")
PREFIX_HITS: Final = _counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache")
EXTERNAL_QUERIES: Final = _counter("vllm:external_prefix_cache_queries", "Prompt tokens looked up in another replica's cache: none yet")
EXTERNAL_HITS: Final = _counter("vllm:external_prefix_cache_hits", "Prompt tokens found in another replica's cache: none yet")
CORRUPTED: Final = _counter("vllm:corrupted_requests", "Requests ended because the model's output was not finite")
ADMISSION_REJECTIONS: Final = _counter(
    "vllm:admission_rejections",
    "Requests refused because too much waits here: too many requests or bytes are held, or too many prompt tokens wait",
    "reason",
)
MM_QUERIES: Final = _counter("vllm:mm_cache_queries", "Images looked up in a cache: none, models are text only")
MM_HITS: Final = _counter("vllm:mm_cache_hits", "Images found in a cache: none, models are text only")
ESTIMATED_FLOPS: Final = _counter(
    "vllm:estimated_flops_per_gpu", "Estimated floating-point operations per device; no series if the model's size is not known"
)
ESTIMATED_READS: Final = _counter(
    "vllm:estimated_read_bytes_per_gpu", "Estimated bytes of weights and KV that a device read; no series if the model's size is not known"
)
ESTIMATED_WRITES: Final = _counter(
    "vllm:estimated_write_bytes_per_gpu", "Estimated bytes of KV that a device wrote; no series if the model's size is not known"
)
DRAFTS: Final = _counter("vllm:spec_decode_num_drafts", "Drafts verified: none, speculation is not built")
DRAFT_TOKENS: Final = _counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted: none, speculation is not built")
ACCEPTED_TOKENS: Final = _counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens accepted: none, speculation is not built")
ACCEPTED_PER_POSITION: Final = _counter(
    "vllm:spec_decode_num_accepted_tokens_per_pos", "Drafted tokens accepted, by position: no series, speculation is not built", "position"
)
TIME_TO_FIRST_TOKEN: Final = _histogram("vllm:time_to_first_token_seconds", "Arrival to first token", _TTFT)
INTER_TOKEN_LATENCY: Final = _histogram("vllm:inter_token_latency_seconds", "Time between two outputs of one answer", _ITL)
TIME_PER_OUTPUT_TOKEN: Final = _histogram(
    "vllm:request_time_per_output_token_seconds", "Mean time per token after the first, of an answer", _ITL
)
E2E_LATENCY: Final = _histogram("vllm:e2e_request_latency_seconds", "Arrival to last token", _LATENCY)
QUEUE_TIME: Final = _histogram("vllm:request_queue_time_seconds", "The engine's hearing of a request to its first row", _LATENCY)
INFERENCE_TIME: Final = _histogram("vllm:request_inference_time_seconds", "First row to last token", _LATENCY)
PREFILL_TIME: Final = _histogram("vllm:request_prefill_time_seconds", "First row to first token", _LATENCY)
DECODE_TIME: Final = _histogram("vllm:request_decode_time_seconds", "First token to last token", _LATENCY)
ITERATION_TOKENS: Final = _histogram("vllm:iteration_tokens_total", "Tokens computed in a step", _STEP_TOKENS)
REQUEST_PROMPT_TOKENS: Final = _histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", TOKEN_BUCKETS)
REQUEST_GENERATION_TOKENS: Final = _histogram("vllm:request_generation_tokens", "Answer tokens of a request", TOKEN_BUCKETS)
REQUEST_MOST_TOKENS: Final = _histogram("vllm:request_max_num_generation_tokens", "Tokens that a request might generate", TOKEN_BUCKETS)
REQUEST_N: Final = _histogram("vllm:request_params_n", "Answers wanted of a request", (1.0, 2.0, 5.0, 10.0, 20.0))
REQUEST_MAX_TOKENS: Final = _histogram("vllm:request_params_max_tokens", "max_tokens of a request", TOKEN_BUCKETS)
REQUEST_COMPUTED: Final = _histogram(
    "vllm:request_prefill_kv_computed_tokens", "Prompt tokens of a request that were not known already", TOKEN_BUCKETS
)
REQUEST_PREEMPTIONS: Final = _histogram("vllm:request_num_preemptions", "Preemptions of an answer", (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0))
BLOCK_LIFETIME: Final = _histogram("vllm:kv_block_lifetime_seconds", "A sampled KV block's first use to its eviction", _RESIDENCY)
BLOCK_IDLE: Final = _histogram("vllm:kv_block_idle_before_evict_seconds", "A sampled KV block's last use to its eviction", _RESIDENCY)
BLOCK_REUSE_GAP: Final = _histogram("vllm:kv_block_reuse_gap_seconds", "Time between two uses of a sampled KV block", _RESIDENCY)

# As prometheus-fastapi-instrumentator names them; `status` is a class such as 2xx, `handler` a route's pattern or "none".
HTTP_REQUESTS: Final = Metric("http_requests", "counter", "Requests answered", ("handler", "method", "status"))
HTTP_SECONDS: Final = Metric("http_request_duration_seconds", "histogram", "Arrival to last byte", ("handler", "method"), (0.1, 0.5, 1.0))

# As every Prometheus client library names them; of the front process, which answers /metrics.
PROCESS_CPU: Final = Metric("process_cpu_seconds", "counter", "CPU time of the front process")
PROCESS_OPEN_FDS: Final = Metric("process_open_fds", "gauge", "Open file descriptors of the front process")
PROCESS_MAX_FDS: Final = Metric("process_max_fds", "gauge", "Most file descriptors that the front process may open")
PROCESS_VIRTUAL: Final = Metric("process_virtual_memory_bytes", "gauge", "Virtual memory of the front process")
PROCESS_RESIDENT: Final = Metric("process_resident_memory_bytes", "gauge", "Resident memory of the front process")
PROCESS_START: Final = Metric("process_start_time_seconds", "gauge", "When the front process started, as a Unix time")

FINE_FIRST_TOKEN: Final = _histogram("pagoda_daemon_time_to_first_token_seconds", "Arrival to first token", _FINE_WAIT)
FINE_INTER_TOKEN: Final = _histogram("pagoda_daemon_inter_token_latency_seconds", "Time between two outputs of one answer", _FINE)
FINE_PER_TOKEN: Final = _histogram(
    "pagoda_daemon_time_per_output_token_seconds", "Mean time per token after the first, of an answer", _FINE
)
FINE_PREPARE: Final = _histogram("pagoda_daemon_prepare_seconds", "Arrival to the engine: reading, checking, tokenising", _FINE_WAIT)
FINE_QUEUE: Final = _histogram("pagoda_daemon_queue_seconds", "The engine's hearing of a request to its first row", _FINE_WAIT)
FINE_PREFILL: Final = _histogram("pagoda_daemon_prefill_seconds", "First row to first token", _FINE_WAIT)
STEP_SECONDS: Final = _histogram("pagoda_daemon_step_seconds", "Length of a step of the engine", _FINE)
CHUNKS: Final = _histogram(
    "pagoda_daemon_prefill_chunks",
    "Steps that computed prompt tokens of an answer",
    (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0),
)
SLO_TARGET: Final = _gauge("pagoda_daemon_slo_target_seconds", "What clients are promised: ttft, itl; no series where nothing is", "slo")
SLO_REQUESTS: Final = _counter(
    "pagoda_daemon_slo_requests",
    "Answers that met (true) or missed (false) a promise: ttft, itl (mean per answer), all of them",
    "slo",
    "met",
)
GOODPUT_TOKENS: Final = _counter("pagoda_daemon_goodput_tokens", "Tokens of answers that met every promise")
REFUSALS: Final = _counter("pagoda_daemon_refusals", "Requests that the engine refused at admission", "reason")
RESPONSES: Final = Metric("pagoda_daemon_responses", "counter", "Answers over HTTP, by exact status", ("status",))
PHASE: Final = _gauge("pagoda_daemon_phase", "1 for the phase that holds", "phase")
IN_FLIGHT: Final = _gauge("pagoda_daemon_in_flight_requests", "Requests accepted and not finished")
PREPARING: Final = _gauge(
    "pagoda_daemon_preparing_requests",
    "Bodies that threads parse, tokenize or write (running), and those that wait for a thread (waiting)",
    "state",
)
WAITING_TOKENS: Final = _gauge(
    "pagoda_daemon_waiting_tokens", "Tokens still to be computed for requests that wait for a row or for their grammar"
)
KV_BLOCKS: Final = _gauge("pagoda_daemon_kv_blocks", "KV blocks, used or free", "state")
STEPS: Final = _counter("pagoda_daemon_steps", "Steps of the engine")
LATE_COMPILATIONS: Final = _counter(
    "pagoda_daemon_late_compilations", "GPU kernels that were compiled after the load, when a step needed them and waited; 0 is right"
)
LOAD_PROGRESS: Final = _gauge("pagoda_daemon_load_progress_ratio", "How much of the model is loaded, 0..1")
ENGINE_HEARTBEAT_AGE: Final = _gauge("pagoda_daemon_engine_heartbeat_age_seconds", "Age of the engine's heartbeat")
STEP_AGE_RATIO: Final = _gauge("pagoda_daemon_step_age_ratio", "Age of the step under way over its predicted length, 0 when idle")
DEEP_CHECKS: Final = _counter("pagoda_daemon_deep_checks", "Deep checks by outcome: right, wrong, late, error", "outcome")
DEVICE_INFO: Final = _gauge(
    "pagoda_device_info",
    "The GPU or the MIG slice that the replica computes on, by NVML; always 1. No series of pagoda_device_* if NVML reads no device",
    *("uuid", "device", "driver", "gpu_instance", "compute_instance"),
)
DEVICE_STATE: Final = _gauge("pagoda_device_state", "1 for what the device is: ok, degraded, or failed (out of routing)", "state")
DEVICE_MEMORY: Final = _gauge("pagoda_device_memory_bytes", "Memory of the device, used or free; of a MIG slice its own", "state")
DEVICE_CELSIUS: Final = _gauge("pagoda_device_temperature_celsius", "Temperature of the GPU")
DEVICE_ECC: Final = _counter(
    "pagoda_device_uncorrected_errors", "Memory errors of the GPU that ECC could not correct, since its driver was loaded"
)
DEVICE_REMAP: Final = _gauge(
    "pagoda_device_row_remap", "1 if replacing a broken row of memory is pending (until a reset), or failed", "state"
)
DEVICE_THROTTLED: Final = _gauge("pagoda_device_throttled", "1 for what holds the clock of the GPU down", "reason")
DEVICE_XIDS: Final = _counter("pagoda_device_xid_errors", "Xid errors of the device since the model was loaded, by number", "xid")
DEVICE_READ_AGE: Final = _gauge("pagoda_device_read_age_seconds", "Since NVML was last read; more than a minute: the driver hangs")
BUILD_INFO: Final = Metric("pagoda_daemon_build_info", "gauge", "What this replica runs; always 1", ("version", "revision"))

# What a replica exports, in this order.
DAEMON_VLLM: Final = (
    *(REQUESTS_RUNNING, REQUESTS_WAITING, WAITING_BY_REASON, KV_USAGE, CACHE_CONFIG, SLEEP_STATE, LORA_INFO),
    *(PROMPT_TOKENS, PROMPT_TOKENS_CACHED, CACHED_BY_SOURCE, PROMPT_TOKENS_BY_SOURCE, GENERATION_TOKENS, REQUEST_SUCCESS, PREEMPTIONS),
    *(PREFIX_QUERIES, PREFIX_HITS, EXTERNAL_QUERIES, EXTERNAL_HITS, CORRUPTED, ADMISSION_REJECTIONS),
    *(MM_QUERIES, MM_HITS, ESTIMATED_FLOPS, ESTIMATED_READS, ESTIMATED_WRITES),
    *(DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, ACCEPTED_PER_POSITION),
    *(TIME_TO_FIRST_TOKEN, INTER_TOKEN_LATENCY, TIME_PER_OUTPUT_TOKEN, E2E_LATENCY),
    *(QUEUE_TIME, INFERENCE_TIME, PREFILL_TIME, DECODE_TIME, ITERATION_TOKENS),
    *(REQUEST_PROMPT_TOKENS, REQUEST_GENERATION_TOKENS, REQUEST_MOST_TOKENS, REQUEST_N, REQUEST_MAX_TOKENS),
    *(REQUEST_COMPUTED, REQUEST_PREEMPTIONS, BLOCK_LIFETIME, BLOCK_IDLE, BLOCK_REUSE_GAP),
)
DAEMON_HTTP: Final = (HTTP_REQUESTS, HTTP_SECONDS)
DAEMON_OWN: Final = (
    *(FINE_FIRST_TOKEN, FINE_INTER_TOKEN, FINE_PER_TOKEN, FINE_PREPARE, FINE_QUEUE, FINE_PREFILL, STEP_SECONDS, CHUNKS),
    *(SLO_TARGET, SLO_REQUESTS, GOODPUT_TOKENS, REFUSALS, RESPONSES),
    *(
        PHASE,
        IN_FLIGHT,
        PREPARING,
        WAITING_TOKENS,
        KV_BLOCKS,
        STEPS,
        LATE_COMPILATIONS,
        LOAD_PROGRESS,
        ENGINE_HEARTBEAT_AGE,
        STEP_AGE_RATIO,
    ),
    *(DEEP_CHECKS, BUILD_INFO, DEVICE_INFO, DEVICE_STATE, DEVICE_MEMORY, DEVICE_CELSIUS, DEVICE_ECC, DEVICE_REMAP, DEVICE_THROTTLED),
    *(DEVICE_XIDS, DEVICE_READ_AGE),
)
DAEMON_PROCESS: Final = (PROCESS_CPU, PROCESS_OPEN_FDS, PROCESS_MAX_FDS, PROCESS_VIRTUAL, PROCESS_RESIDENT, PROCESS_START)
DAEMON: Final = (*DAEMON_VLLM, *DAEMON_HTTP, *DAEMON_PROCESS, *DAEMON_OWN)

OPERATOR_RECONCILES: Final = Metric("pagoda_operator_reconciles", "counter", "Runs, by what came of them", ("outcome",))
OPERATOR_RECONCILE_SECONDS: Final = Metric(
    "pagoda_operator_reconcile_seconds",
    "histogram",
    "Length of a run",
    (),
    (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
OPERATOR_QUEUE: Final = Metric("pagoda_operator_queue", "gauge", "Keys that are due or in work; 0 on a standby")
OPERATOR_QUEUE_AGE: Final = Metric("pagoda_operator_queue_age_seconds", "gauge", "How long the slowest key has waited or been in work")
OPERATOR_EVENTS_WAITING: Final = Metric("pagoda_operator_events_waiting", "gauge", "Events that are to be written")
OPERATOR_DOWN: Final = Metric(
    "pagoda_operator_services_down", "gauge", "Services that served, are not asleep and have no replica that takes requests"
)
OPERATOR_START_SECONDS: Final = Metric(
    "pagoda_operator_start_seconds",
    "histogram",
    "Length of the phases of replicas' starts, from the creation of the pod to Ready: scheduled (until it had a node), image (images and "
    "volumes), fetch, load, warm (from the end of the load on, as replicas report it). Starts with a restart are left out",
    ("phase",),
    (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
)
OPERATOR_ERRORS: Final = Metric("pagoda_operator_errors", "counter", "Runs that failed, by class of the error", ("class",))
OPERATOR_LEADER: Final = Metric("pagoda_operator_leader", "gauge", "1 for the process that works, 0 for a standby")
OPERATOR_EPOCH: Final = Metric("pagoda_operator_epoch", "gauge", "Changes of the leader that this process knows of")
OPERATOR_WRITES: Final = Metric("pagoda_operator_writes", "counter", "Requests that write to the API server", ("kind", "verb"))
OPERATOR_READS_AGAIN: Final = Metric("pagoda_operator_reads_again", "counter", "Reads that failed and were asked again at once")
OPERATOR_WATCH_AGE: Final = Metric("pagoda_operator_watch_age_seconds", "gauge", "Since the last event or bookmark", ("kind",))
OPERATOR: Final = (
    OPERATOR_RECONCILES,
    OPERATOR_RECONCILE_SECONDS,
    OPERATOR_QUEUE,
    OPERATOR_QUEUE_AGE,
    OPERATOR_EVENTS_WAITING,
    OPERATOR_DOWN,
    OPERATOR_START_SECONDS,
    OPERATOR_ERRORS,
    OPERATOR_WRITES,
    OPERATOR_READS_AGAIN,
    OPERATOR_WATCH_AGE,
    OPERATOR_LEADER,
    OPERATOR_EPOCH,
)
