"""docs/metrics.md: every metric family of every component, from `metrics`. Pure; `generate` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pagoda_contracts import gateway_metrics, metrics
from pagoda_contracts.metrics import Metric
from pagoda_contracts.names import PORT_DAEMON_HTTP, PORT_METRICS

PATH: Final = "docs/metrics.md"
_HEAD: Final = f"""# Metrics

GENERATED from contracts/pagoda_contracts/metrics.py by `make generate`. Do not edit.

A replica answers `/metrics` on its API port, {PORT_DAEMON_HTTP}; gateway and operator on {PORT_METRICS}. The `vllm:*` names
carry vLLM's labels, types and buckets, so that its dashboards, autoscalers and pickers read them unchanged; ours beside them are
finer. Counters are written with `_total`, histograms with `_bucket`, `_sum` and `_count`. Prometheus' own linter (what `promtool
check metrics` runs) has nothing to say about our names and those of HTTP; of vLLM's it dislikes the colon, and a histogram called
a total (tests/parity/test_promlint.py).

No label holds what a client wrote: `model_name` is the first served name, `engine` is 0, unknown routes are `none`. Buckets of tokens end
at the model's context. All times are seconds.

Goodput is counted where the configuration has promises (`slo.ttft`, `slo.itl` of DaemonConfig): a served answer meets `itl` by its mean
time per token; a failed one misses every promise; one whose client left counts for nothing.
"""


def text() -> str:
    """The whole page."""
    parts = (
        ("Replica: vLLM's names", metrics.DAEMON_VLLM),
        ("Replica: HTTP", metrics.DAEMON_HTTP),
        ("Replica: its front process", metrics.DAEMON_PROCESS),
        ("Replica: our own", metrics.DAEMON_OWN),
        ("Gateway", gateway_metrics.GATEWAY_OWN),
        (
            "Gateway: names of llm-d's endpoint picker, and their older twins",
            (*gateway_metrics.GATEWAY_POOL, *gateway_metrics.SCHEDULER_SECONDS),
        ),
        ("Operator", metrics.OPERATOR),
    )
    buckets = _numbered((*metrics.DAEMON, *gateway_metrics.GATEWAY, *metrics.OPERATOR))
    tables = [f"\n## {title}\n\n{_table(families, buckets)}" for title, families in parts]
    return _HEAD + "".join(tables) + _bucket_list(buckets)


def _numbered(families: Sequence[Metric]) -> dict[tuple[float, ...], int]:
    found: dict[tuple[float, ...], int] = {}
    for metric in families:
        if metric.buckets:
            found.setdefault(metric.buckets, len(found) + 1)
    return found


def _table(families: Sequence[Metric], buckets: dict[tuple[float, ...], int]) -> str:
    rows = "".join(_row(metric, buckets) for metric in families)
    return f"| name | type | labels | meaning |\n|---|---|---|---|\n{rows}"


def _row(metric: Metric, buckets: dict[tuple[float, ...], int]) -> str:
    kind = f"{metric.kind} ({buckets[metric.buckets]})" if metric.buckets else metric.kind
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {kind} | {labels} | {metric.help} |\n"


def _bucket_list(buckets: dict[tuple[float, ...], int]) -> str:
    lines = (
        f"{number}. {' '.join(f'{bound:g}' if bound < 1e6 else str(int(bound)) for bound in bounds)}" for bounds, number in buckets.items()
    )
    return "\n## Buckets\n\nUpper bounds, by the number beside `histogram`:\n\n" + "\n".join(lines) + "\n"
