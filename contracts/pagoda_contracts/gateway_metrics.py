"""Names, labels and buckets of the gateway's metrics, as in metrics.py.

The `llm_d_epp_*` and `inference_*` twins are those that dashboards and autoscalers of llm-d
and of the Gateway API's inference extension read.
"""

from __future__ import annotations

from typing import Final

from pagoda_contracts.metrics import Metric

GATEWAY_REQUESTS: Final = Metric("pagoda_gateway_requests", "counter", "Requests answered", ("service", "code"))
GATEWAY_UNAUTHENTICATED: Final = Metric(
    "pagoda_gateway_unauthenticated", "counter", "Requests refused for their API key: missing, malformed, unknown or expired", ("reason",)
)
GATEWAY_HELD: Final = Metric("pagoda_gateway_held_requests", "gauge", "Requests held: no replica can take them yet", ("service",))
GATEWAY_ENDPOINTS: Final = Metric("pagoda_gateway_endpoints", "gauge", "Endpoints known", ("service", "verdict"))
GATEWAY_REPICKS: Final = Metric(
    "pagoda_gateway_repicks", "counter", "Requests picked again, and streams that go on at another replica", ("service", "reason")
)
GATEWAY_LEFT_OUT: Final = Metric(
    "pagoda_gateway_left_out",
    "counter",
    "Times that a replica failed several requests in a row, so that it is left out if half of its revision stays",
    ("service",),
)
GATEWAY_CONTINUED: Final = Metric(
    "pagoda_gateway_continued_streams",
    "counter",
    "Streams that went on at another replica: with the same numbers, or with others",
    ("service", "numbers"),
)
GATEWAY_OVERFLOWED: Final = Metric(
    "pagoda_gateway_overflowed",
    "counter",
    "Requests that overflowed to an API outside of the cluster. result: answered, broken (its stream broke off), refused (another status "
    "than 200), failed (no answer), left (the client left) or kept (not sent: the request or the key does not fit)",
    ("service", "target", "result"),
)
GATEWAY_HOLD_SECONDS: Final = Metric(
    "pagoda_gateway_hold_seconds", "histogram", "Time requests were held", ("service",), (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)
)
GATEWAY_TOKENS: Final = Metric(
    "pagoda_gateway_tokens",
    "counter",
    "Tokens that replicas and overflow targets counted, also for streams that were cut. kind: prompt (without cached ones), cached or "
    "answer. The first 1000 payers; the rest is `other`",
    ("tenant", "key", "service", "adapter", "class", "kind"),
)
GATEWAY_OVER_QUOTA: Final = Metric(
    "pagoda_gateway_over_quota",
    "counter",
    "Requests refused by a TenantQuota. limit: model, concurrency, requests or tokens",
    ("quota", "limit"),
)
GATEWAY_QUOTA_STORE: Final = Metric(
    "pagoda_gateway_quota_store_up",
    "gauge",
    "1 while the common store of quotas answers, else 0: each gateway takes its share",
)
GATEWAY_DURATION: Final = Metric(
    *(
        "pagoda_gateway_request_duration_seconds",
        "histogram",
        "Arrival to last byte of requests that a replica was asked for",
        ("service",),
    ),
    (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
GATEWAY_TTFT: Final = Metric(
    "pagoda_gateway_time_to_first_token_seconds",
    "histogram",
    "Arrival to the first byte of a stream, the time in the hold queue included",
    ("service",),
    (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)


def _pool(name: str, older: str, text: str, *labels: str) -> tuple[Metric, Metric]:
    """llm-d's name and the older one, of the same meaning."""
    return Metric(f"llm_d_epp_{name}", "gauge", text, labels), Metric(f"inference_{older}", "gauge", text, labels)


_HELD: Final = ("fairness_id", "priority", "inference_pool", "model_name", "target_model_name")
POOL_AVERAGE_QUEUE: Final = _pool("average_queue_size", "pool_average_queue_size", "Requests that wait, mean of ready replicas", "name")
POOL_AVERAGE_KV: Final = _pool(
    "average_kv_cache_utilization", "pool_average_kv_cache_utilization", "KV blocks in use, 0..1, mean of ready replicas", "name"
)
POOL_READY: Final = _pool("ready_endpoints", "pool_ready_pods", "Replicas that are ready", "name")
POOL_HELD: Final = _pool(
    "flow_control_queue_size", "extension_flow_control_queue_size", "Requests held: no replica can take them yet", *_HELD
)
GATEWAY_POOL: Final = (*POOL_AVERAGE_QUEUE, *POOL_AVERAGE_KV, *POOL_READY, *POOL_HELD)
SCHEDULER_SECONDS: Final = tuple(
    Metric(
        *(
            f"{system}_scheduler_e2e_duration_seconds",
            "histogram",
            "Time to choose a replica for a request, without the time it was held",
            (),
        ),
        (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
    )
    for system in ("llm_d_epp", "inference_extension")
)
GATEWAY_OWN: Final = (
    *(GATEWAY_REQUESTS, GATEWAY_UNAUTHENTICATED, GATEWAY_HELD, GATEWAY_ENDPOINTS, GATEWAY_REPICKS, GATEWAY_HOLD_SECONDS),
    *(GATEWAY_DURATION, GATEWAY_TTFT, GATEWAY_CONTINUED, GATEWAY_LEFT_OUT, GATEWAY_OVERFLOWED),
    *(GATEWAY_TOKENS, GATEWAY_OVER_QUOTA, GATEWAY_QUOTA_STORE),
)
GATEWAY: Final = (*GATEWAY_OWN, *GATEWAY_POOL, *SCHEDULER_SECONDS)
