"""Prometheus' text format 0.0.4. Pure.

Written here because pickers scrape each replica up to 20 times a second: this takes 0.6 ms per scrape, prometheus_client's writer 7.4 ms,
in which no token leaves. Its parser and Prometheus' own linter judge the result in the tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pagoda_contracts.metrics import Metric

from pagoda_daemon.metrics.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Values = Mapping[tuple[str, ...], float]


def family(metric: Metric, lines: Iterable[str]) -> str:
    """Head and samples."""
    name = sample_name(metric)
    return f"# HELP {name} {_help(metric.help)}\n# TYPE {name} {metric.kind}\n{''.join(lines)}"


def sample_name(metric: Metric) -> str:
    """As it is written: counters end in _total."""
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


def values(metric: Metric, found: Values) -> Iterable[str]:
    """Samples of a gauge or a counter, by the values of its labels."""
    name = sample_name(metric)
    return (f"{name}{labelled(metric.labels, labels)} {number(value)}\n" for labels, value in found.items())


def histogram(metric: Metric, labels: Sequence[str], found: Histogram, upto: float = float("inf")) -> Iterable[str]:
    """Samples of one series; bounds over `upto`, which no value exceeds, are left out."""
    shown, total = labelled(metric.labels, labels)[1:-1], 0
    for bound, count in zip(found.bounds, found.counts, strict=False):
        total += count
        if bound <= upto:
            yield f'{metric.name}_bucket{{{shown},le="{bound}"}} {total}\n'
    total += found.counts[-1]
    yield f'{metric.name}_bucket{{{shown},le="+Inf"}} {total}\n'
    yield f"{metric.name}_sum{{{shown}}} {number(found.sum)}\n{metric.name}_count{{{shown}}} {total}\n"


def labelled(names: Sequence[str], given: Sequence[str]) -> str:
    """{name="value",...}; nothing where there is no label."""
    pairs = ",".join(f'{name}="{_quoted(value)}"' for name, value in zip(names, given, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def number(value: float) -> str:
    """Whole numbers as such, whatever their type."""
    return str(int(value)) if value == value // 1 and abs(value) < 1 << 53 else repr(float(value))


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _help(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n")
