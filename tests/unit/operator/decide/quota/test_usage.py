"""What gateways admitted under a quota reaches its status: summed, at a bounded rate, and nothing is written at rest."""

import asyncio

import pytest
from pagoda_contracts.names import API_VERSION
from pagoda_contracts.pb.demand_pb2 import QuotaReport, QuotaUsage
from pagoda_contracts.resources.tenant import TenantQuotaSpec, WindowLimit, WindowUsage
from pagoda_operator.api.state import QUOTAS
from pagoda_operator.quota.usage import QuotaUsages, summary
from support.harness.quota import START, QuotaHarness

MINUTE, HOUR = 60_000, 3_600_000
NOW_MS = round(START.timestamp() * 1000)
LIMITS = [{"window": "1m", "requests": 600}, {"window": "1h", "requests": 9_000, "tokens": 1_000}]
SPEC = TenantQuotaSpec.model_validate({"subjects": {"apiKeysSecretRef": {"namespace": "pagoda", "name": "k"}}, "limits": LIMITS})


def report(*rows):
    fields = ("quota", "window_ms", "start_unix_ms", "requests", "tokens")
    return QuotaReport(windows=[QuotaUsage(**dict(zip(fields, row, strict=True))) for row in rows])


def used(usages, now_ms=NOW_MS):
    return [(one.requests, one.tokens) for one in usages.of("team", SPEC, now_ms / 1000)]


def test_what_gateways_admitted_is_summed_by_window():
    usages = QuotaUsages()
    assert usages.of("team", SPEC, NOW_MS / 1000) is None
    usages.hear("a", report(("team", MINUTE, NOW_MS, 3, 0), ("team", HOUR, NOW_MS, 30, 400), ("other", HOUR, NOW_MS, 99, 99)))
    usages.hear("b", report(("team", HOUR, NOW_MS, 5, 100)))
    assert used(usages) == [(3, None), (35, 500)]
    usages.hear("b", report(("team", HOUR, NOW_MS, 6, 200)))
    assert used(usages) == [(3, None), (36, 600)]
    usages.forget("a")
    assert used(usages) == [(0, None), (6, 200)]


def test_only_the_newest_window_counts_and_none_that_is_over():
    usages = QuotaUsages()
    usages.hear("late", report(("team", HOUR, NOW_MS - HOUR, 100, 900)))
    assert used(usages, NOW_MS - 1) == [(0, None), (100, 900)]
    assert used(usages, NOW_MS) == [(0, None), (0, 0)]
    usages.hear("early", report(("team", HOUR, NOW_MS, 1, 10)))
    assert used(usages, NOW_MS - 1) == [(0, None), (1, 10)], "a gateway's clock is ahead"


@pytest.mark.parametrize(
    ("windows", "text"),
    [
        ((), None),
        ((WindowUsage(window="1m", requests=3, requests_left=597),), "3/600 requests in 1m"),
        (
            (WindowUsage(window="1m", requests=3, requests_left=597), WindowUsage(window="24h", tokens=5, tokens_left=995)),
            "3/600 requests in 1m; 5/1000 tokens in 24h",
        ),
        ((WindowUsage(window="1m", requests=700, requests_left=0),), "700/600 requests in 1m"),
        ((WindowUsage(window="5m", requests=3, requests_left=597),), None),  # of the spec before
        ((WindowUsage(window="1m", tokens=3, tokens_left=597),), None),
    ],
)
def test_the_summary_says_what_is_used_of_what(windows, text):
    limits = (WindowLimit(window="1m", requests=600), WindowLimit(window="24h", tokens=1000))
    assert summary(windows, limits) == text


def world_of_limits():
    harness = QuotaHarness()
    spec = SPEC.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    harness.api.put(QUOTAS, {"apiVersion": API_VERSION, "kind": QUOTAS.kind, "metadata": {"name": "team"}, "spec": spec})
    return harness


def written(harness):
    asyncio.run(harness.status_writer.write())
    return harness.api.objects[QUOTAS.kind, "", "team"]["status"].get("usage")


def test_the_status_has_used_and_left_once_a_minute_and_no_write_follows_without_requests():
    harness = world_of_limits()
    harness.usages.hear("a", report(("team", HOUR, NOW_MS, 30, 400)))
    assert written(harness) == {
        "summary": "0/600 requests in 1m; 30/9000 requests, 400/1000 tokens in 1h",
        "windows": [
            {"window": "1m", "requests": 0, "requestsLeft": 600},
            {"window": "1h", "requests": 30, "tokens": 400, "requestsLeft": 8970, "tokensLeft": 600},
        ],
        "migSlices": [],
    }
    writes = len(harness.api.journal)
    for requests in range(31, 60):  # 58 s of requests
        harness.later += 2
        harness.usages.hear("a", report(("team", HOUR, NOW_MS, requests, 400)))
        written(harness)
    assert len(harness.api.journal) == writes
    harness.later += 2
    assert written(harness)["windows"][1]["requests"] == 59
    harness.later = 3_600
    assert written(harness)["windows"][1] == {"window": "1h", "requests": 0, "tokens": 0, "requestsLeft": 9000, "tokensLeft": 1000}
    writes = len(harness.api.journal)
    for _ in range(50):
        harness.later += 600
        written(harness)
    assert len(harness.api.journal) == writes


def test_a_new_operator_keeps_what_was_written_until_a_gateway_reports():
    harness = world_of_limits()
    harness.usages.hear("a", report(("team", HOUR, NOW_MS, 30, 400)))
    before, writes = written(harness), len(harness.api.journal)
    harness.restart()
    assert (written(harness), len(harness.api.journal)) == (before, writes)
