"""What a replica logs of its traffic: a line for each request that ends, and one on its throughput every 10 s while it is busy.

Counts, times and names only; no text of a prompt or an answer, no key. Called by `measured` and by `front`.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import structlog

from pagoda_daemon.api.openai.trace import timing
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts
from pagoda_daemon.metrics.gaps import Gaps
from pagoda_daemon.metrics.records import Record
from pagoda_daemon.metrics.seldom import Seldom

log = structlog.get_logger()

EVERY_S: Final = 10.0
_REFUSED: Final = 400


def is_logged(method: str, status: int) -> bool:
    """Requests that cost something, and whatever was refused; not probes and scrapes that went well."""
    return method == "POST" or status >= _REFUSED


def access(records: Sequence[Record]) -> dict[str, Any]:
    """Of one request, whose prompts the records are: tokens, times in milliseconds, and how its answers ended; {} if none was begun.
    `itl_ms` is the mean time per token after the first, `itl_p95_ms` what 95 % of the times between two outputs do not exceed."""
    if not records:
        return {}
    times = timing(records)
    p95 = Gaps.of(record.gaps for record in records).p95()
    gaps = [gap for record in records if (gap := record.per_token_s) is not None]
    return {
        "tenant": records[0].tenant,
        "prompt_tokens": sum(record.prompt_tokens for record in records),
        "cached_tokens": times.cached_tokens,
        "completion_tokens": sum(record.completion_tokens for record in records),
        "ttft_ms": times.ttft_ms,
        "queue_ms": times.queue_ms,
        "itl_ms": round(1000 * sum(gaps) / len(gaps), 3) if gaps else None,
        "itl_p95_ms": None if p95 is None else round(1000 * p95, 3),
        "finish": sorted({reason for record in records for reason in record.reasons}),
    }


class RefusedConnections:
    """Bytes that are no request, and connections beyond those that are held: a line at most every 10 s, since anybody can send garbage."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._seldom = Seldom(EVERY_S)

    def add(self, code: str, now: float) -> None:
        self._counts[code] += 1
        if self._seldom.due(now):
            log.warning("connections_refused", **self._counts)
            self._counts.clear()


class Mark(NamedTuple):
    """The counters at a moment of the monotonic clock."""

    at: float
    prompt: int
    reused: int
    generated: int


def mark(replica: Replica, counts: Counts, now: float) -> Mark:
    """As they are."""
    return Mark(now, replica.stats.prompt_tokens, replica.stats.reused_tokens, counts.generation_tokens)


def throughput(before: Mark, after: Mark, replica: Replica) -> dict[str, Any] | None:
    """What happened between two marks; None if nothing did and nothing waits."""
    prompt, generated, stats = after.prompt - before.prompt, after.generated - before.generated, replica.stats
    if not (prompt or generated or replica.in_flight):
        return None
    seconds = after.at - before.at
    return {
        "prompt_tokens_per_s": round(prompt / seconds, 1),
        "generation_tokens_per_s": round(generated / seconds, 1),
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_used": round(stats.blocks_used / stats.blocks_total, 3) if stats.blocks_total else 0.0,
        "prefix_hits": round((after.reused - before.reused) / prompt, 3) if prompt else None,
    }


async def report(replica: Replica, counts: Counts) -> None:
    """For ever."""
    before = mark(replica, counts, time.monotonic())
    while True:
        await asyncio.sleep(EVERY_S)
        after = mark(replica, counts, time.monotonic())
        if (found := throughput(before, after, replica)) is not None:
            log.info("throughput", **found)
        before = after
