"""Report: a run in numbers, as one frozen object and as text. Called by `command` and bench; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from pagoda_daemon.simulated.replay.run import Outcome, Record


class Spread(msgspec.Struct, frozen=True):
    """Milliseconds."""

    p50: float
    p95: float
    p99: float


class Objective(msgspec.Struct, frozen=True):
    """What a client still calls good: the first token, and every gap between two tokens."""

    ttft_ms: float
    itl_ms: float


class Report(msgspec.Struct, frozen=True):
    """`goodput_tokens_per_s` counts answers that met the objective; shares are of time (KV) and of prompt tokens (prefix)."""

    requests: int
    ends: dict[str, int]
    seconds: float
    steps: int
    row_steps: int
    rows_mean: float
    output_tokens_per_s: float
    goodput_tokens_per_s: float
    good_requests: int
    ttft_ms: Spread
    itl_ms: Spread
    kv_used_mean: float
    kv_used_peak: float
    prefix_share: float
    preemptions: int


def report(outcome: Outcome, objective: Objective) -> Report:
    """The run against an objective."""
    seconds = outcome.now_ms / 1000.0
    good = [record for record in outcome.records if _good(record, objective)]
    started = [record.first_ms - record.job.arrival_ms for record in outcome.records if record.first_ms is not None]
    return Report(
        requests=len(outcome.records),
        ends=dict(Counter(record.end for record in outcome.records)),
        seconds=seconds,
        steps=outcome.steps,
        row_steps=outcome.row_steps,
        rows_mean=outcome.row_steps / max(1, outcome.steps),
        output_tokens_per_s=sum(record.tokens for record in outcome.records) / max(seconds, 1e-9),
        goodput_tokens_per_s=sum(record.tokens for record in good) / max(seconds, 1e-9),
        good_requests=len(good),
        ttft_ms=spread(started),
        itl_ms=spread(outcome.gaps_ms),
        kv_used_mean=outcome.kv_ms / max(outcome.busy_ms, 1e-9),
        kv_used_peak=outcome.kv_peak,
        prefix_share=outcome.reused_tokens / max(1, outcome.prompt_tokens),
        preemptions=outcome.preemptions,
    )


def spread(values: Sequence[float] | NDArray[np.float32]) -> Spread:
    """Percentiles; zeros of nothing."""
    return Spread(*np.percentile(values, (50, 95, 99)).tolist()) if len(values) else Spread(0.0, 0.0, 0.0)


def _good(record: Record, objective: Objective) -> bool:
    if record.first_ms is None or record.end not in ("length", "stop"):
        return False
    return record.first_ms - record.job.arrival_ms <= objective.ttft_ms and record.worst_gap_ms <= objective.itl_ms


def text(found: Report) -> str:
    """For a person."""
    ends = ", ".join(f"{count} {reason}" for reason, count in sorted(found.ends.items()))
    lines = [
        f"requests     {found.requests} ({ends}) in {found.seconds:.1f} s, {found.steps} steps of {found.rows_mean:.1f} rows",
        f"throughput   {found.output_tokens_per_s:,.0f} tokens/s",
        f"goodput      {found.goodput_tokens_per_s:,.0f} tokens/s in {found.good_requests} requests",
        f"TTFT ms      p50 {found.ttft_ms.p50:.1f}  p95 {found.ttft_ms.p95:.1f}  p99 {found.ttft_ms.p99:.1f}",
        f"ITL ms       p50 {found.itl_ms.p50:.2f}  p95 {found.itl_ms.p95:.2f}  p99 {found.itl_ms.p99:.2f}",
        f"KV           {found.kv_used_mean:.0%} in the mean, {found.kv_used_peak:.0%} at most",
        f"prefix       {found.prefix_share:.0%} of prompt tokens were known",
        f"preemptions  {found.preemptions}",
    ]
    return "\n".join(lines)
