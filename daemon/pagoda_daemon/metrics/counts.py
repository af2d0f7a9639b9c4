"""Counts: what the front counts of each request, when it is opened, at its first token and at its end. Written by the event loop only.

Called by `api/routes/generation.py`. The clock is the caller's. What other parts ask often is cheap: `ttft_p95`, `tokens_per_second`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from pagoda_contracts import metrics as names
from pagoda_contracts.launch import SloConfig
from pagoda_contracts.units import parse_duration

from pagoda_daemon.core.messages import Life, RowOutput, Submit
from pagoda_daemon.metrics.histogram import Histogram, Rate, Recent
from pagoda_daemon.metrics.records import ABORTED, FAILED, REFUSED, Record, Ring
from pagoda_daemon.metrics.tokens import TokenMeter

FINISHED: Final = ("stop", "length", ABORTED, FAILED)
_OF_LIVES: Final = (
    *(names.QUEUE_TIME, names.FINE_QUEUE, names.PREFILL_TIME, names.FINE_PREFILL),
    *(names.CHUNKS, names.REQUEST_PREEMPTIONS),
)
_OF_REQUESTS: Final = (
    *(names.TIME_TO_FIRST_TOKEN, names.FINE_FIRST_TOKEN, names.TIME_PER_OUTPUT_TOKEN, names.FINE_PER_TOKEN, names.E2E_LATENCY),
    *(names.INFERENCE_TIME, names.DECODE_TIME, names.FINE_PREPARE, names.REQUEST_PROMPT_TOKENS, names.REQUEST_GENERATION_TOKENS),
    *(names.REQUEST_MOST_TOKENS, names.REQUEST_N, names.REQUEST_MAX_TOKENS, names.REQUEST_COMPUTED),
)


class Slo(NamedTuple):
    """What clients are promised, in seconds; None: nothing. `itl` is the mean of an answer."""

    ttft: float | None = None
    itl: float | None = None

    @classmethod
    def of(cls, config: SloConfig | None) -> Slo:
        given = (config.ttft, config.itl) if config else (None, None)
        return cls(*(None if one is None else parse_duration(one) for one in given))

    def verdicts(self, ttft: float | None, itl: float | None) -> dict[str, bool]:
        """By promise, whether a served answer met it; none where nothing is promised. An answer of one token has no gap to be late in."""
        found = {}
        if self.ttft is not None:
            found["ttft"] = ttft is not None and ttft <= self.ttft
        if self.itl is not None:
            found["itl"] = itl is None or itl <= self.itl
        return found | {"all": all(found.values())} if found else {}


class Counts:
    """Everything of one replica."""

    def __init__(self, meter: TokenMeter | None = None, slo: Slo | None = None) -> None:
        self.meter = meter or TokenMeter()
        self.slo = slo or Slo()
        self.recent = Ring()
        self.histograms = {metric.name: Histogram(metric) for metric in (*_OF_REQUESTS, *_OF_LIVES)}
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.goodput_tokens = 0
        self.finished: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.verdicts: Counter[tuple[str, str]] = Counter()
        self._first_tokens = Recent()
        self._rate = Rate()

    @property
    def generation_tokens(self) -> int:
        return self.meter.tokens

    def ttft_p95(self, now: float) -> float:
        """Seconds; of the first tokens of the last minute, 0 where there was none. Cheap enough for every frame of state."""
        return self._first_tokens.p95(now)

    def tokens_per_second(self, now: float) -> float:
        """Generated, over the last 10 s in which a reader asked."""
        return self._rate.per_second(self.meter.tokens, now)

    def open(self, message: Submit, arrived: float, sent: float) -> Record:
        """A request was handed to the engine, which may have it since `sent`: from there the engine's own times run."""
        record = Record.of(message, arrived, sent)
        self.recent.add(record)
        self._add(names.FINE_PREPARE, sent - arrived)
        self._add(names.REQUEST_N, record.choices)
        self._add(names.REQUEST_MAX_TOKENS, record.max_tokens)
        self._add(names.REQUEST_MOST_TOKENS, record.max_tokens)
        return record

    def hear(self, record: Record, row: RowOutput, now: float) -> None:
        """An output with a life or an end; others say nothing new."""
        record.hear(row)
        if record.first_token is None and row.token_ids:
            record.first_token = now
            self._first(record, now)

    def _first(self, record: Record, now: float) -> None:
        waited = now - record.arrived
        self._add(names.TIME_TO_FIRST_TOKEN, waited)
        self._add(names.FINE_FIRST_TOKEN, waited)
        self._first_tokens.add(waited, now)
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self._add(names.REQUEST_COMPUTED, record.prompt_tokens - record.cached_tokens)

    def close(self, record: Record, now: float) -> None:
        """Every answer of it is over, however it came."""
        record.ended = now
        if record.reason == REFUSED:
            self.refused[record.refusal] += 1
            return
        reasons = [reason if reason in FINISHED else FAILED for reason in record.reasons]
        self.finished.update(reasons)
        for life in record.lives.values():
            self._life(life)
        if ABORTED not in reasons:
            self._judge(record, served=FAILED not in reasons)
            if FAILED not in reasons:
                self._served(record, now)

    def _life(self, life: Life) -> None:
        for metric in (names.QUEUE_TIME, names.FINE_QUEUE):
            self._add(metric, life.queued_ms / 1000)
        for metric in (names.PREFILL_TIME, names.FINE_PREFILL):
            self._add(metric, life.prefill_ms / 1000)
        self._add(names.CHUNKS, life.chunks)
        self._add(names.REQUEST_PREEMPTIONS, life.preemptions)

    def _served(self, record: Record, now: float) -> None:
        self._add(names.E2E_LATENCY, now - record.arrived)
        self._add(names.REQUEST_PROMPT_TOKENS, record.prompt_tokens)
        self._add(names.REQUEST_GENERATION_TOKENS, record.completion_tokens)
        if (per_token := record.per_token_s) is not None:
            self._add(names.TIME_PER_OUTPUT_TOKEN, per_token)
            self._add(names.FINE_PER_TOKEN, per_token)
        if record.first_token is not None:
            decode = now - record.first_token
            self._add(names.DECODE_TIME, decode)
            self._add(names.INFERENCE_TIME, decode + (record.lives[0].prefill_ms / 1000 if 0 in record.lives else 0.0))

    def _judge(self, record: Record, *, served: bool) -> None:
        first = None if record.first_token is None else record.first_token - record.arrived
        found = self.slo.verdicts(first, record.per_token_s)
        if not served:
            found = dict.fromkeys(found, False)
        for promise, met in found.items():
            self.verdicts[promise, "true" if met else "false"] += 1
        if found.get("all"):
            self.goodput_tokens += record.completion_tokens

    def _add(self, metric: names.Metric, value: float) -> None:
        self.histograms[metric.name].add(value)
