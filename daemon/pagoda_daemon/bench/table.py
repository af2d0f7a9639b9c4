"""The table at the end of a run, line by line as `vllm bench serve` prints it: scripts read it. Pure; called by `command`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pagoda_daemon.bench.statistics import METRICS, percentile_name

_WIDTH: Final = 50
_LINES: Final = (
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total Token throughput (tok/s):", "total_token_throughput"),
)


def table(found: Mapping[str, Any], rate: float, max_concurrency: int | None, percentiles: Sequence[float]) -> str:
    """Latencies that `found` does not have are left out."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    lines += [_line("Successful requests:", found["completed"]), _line("Failed requests:", found["failed"])]
    if max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", max_concurrency))
    if math.isfinite(rate):
        lines.append(_line("Request rate configured (RPS):", float(rate)))
    lines += [_line(said, found[name]) for said, name in _LINES if found[name] is not None]
    for name, (short, title) in METRICS.items():
        if f"mean_{name}_ms" in found:
            lines += _section(found, name, (short, title), percentiles)
    return "\n".join([*lines, "=" * _WIDTH])


def _section(found: Mapping[str, Any], name: str, said: tuple[str, str], percentiles: Sequence[float]) -> list[str]:
    short, title = said
    lines = [f"{title:-^{_WIDTH}}"]
    lines += [_line(f"{which.capitalize()} {short} (ms):", found[f"{which}_{name}_ms"]) for which in ("mean", "median")]
    named = map(percentile_name, percentiles)
    return [*lines, *(_line(f"P{one} {short} (ms):", found[f"p{one}_{name}_ms"]) for one in named)]


def _line(said: str, value: float) -> str:
    return f"{said:<40} {value:<10.2f}" if isinstance(value, float) else f"{said:<40} {value:<10}"
