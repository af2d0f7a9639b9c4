"""/metrics: every family of `contracts.metrics.DAEMON`, from the state at hand when scraped. Called by `api/`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from pagoda_contracts import metrics as names
from pagoda_contracts.metrics import Metric
from pagoda_contracts.pb.daemon_pb2 import Phase

from pagoda_daemon.health.replica import OUTCOMES, Replica
from pagoda_daemon.metrics.counts import FINISHED, Counts
from pagoda_daemon.metrics.device import device_values
from pagoda_daemon.metrics.histogram import Histogram
from pagoda_daemon.metrics.http import HttpCounts
from pagoda_daemon.metrics.process import ProcessUse
from pagoda_daemon.metrics.text import Values, family, histogram, values
from pagoda_daemon.metrics.work import ModelWork

_ENGINE: Final = "0"  # one engine per replica
_REFUSALS: Final = ("queue_full", "memory_pressure", "load_shed", "deadline", "draining", "expired")
_CROWDED: Final = ("queue_full", "load_shed")
_SOURCES: Final = ("device", "host", "p2p", "disk", "external_unspecified")
_NEVER: Final = (
    *(names.EXTERNAL_QUERIES, names.EXTERNAL_HITS, names.MM_QUERIES, names.MM_HITS),
    *(names.DRAFTS, names.DRAFT_TOKENS, names.ACCEPTED_TOKENS),
)
_ESTIMATES: Final = (names.ESTIMATED_FLOPS, names.ESTIMATED_READS, names.ESTIMATED_WRITES)
_SLEEP: Final = ("awake", "weights_offloaded", "discard_all")

_ENGINES: Final = (names.ITERATION_TOKENS, names.STEP_SECONDS, names.BLOCK_LIFETIME, names.BLOCK_IDLE, names.BLOCK_REUSE_GAP)

WorkOf = Callable[[], ModelWork | None]
Scalars = dict[Metric, float | Mapping[Any, float]]


def no_work() -> ModelWork | None:
    """For a model that is computed by nothing."""
    return None


class Build(NamedTuple):
    """What runs."""

    version: str = ""
    revision: str = ""


class Exposition:
    """The text of /metrics. `model_name` is the first served name, whichever a client used; `http` counts the answers; `more` are
    asked too: families of parts that are not named here."""

    def __init__(self, model_name: str, replica: Replica, counts: Counts, build: Build = Build(), work: WorkOf = no_work) -> None:  # noqa: B008  frozen
        self._work_of = work
        self._work: ModelWork | None = None
        self._labels = (model_name, _ENGINE)
        self._build = build
        self._replica = replica
        self._counts = counts
        self._steps = {metric: Histogram(metric) for metric in _ENGINES}
        self._process = ProcessUse()
        self.http = HttpCounts()
        self.more: list[Callable[[], Scalars]] = []

    def text(self, now: float, unix: float) -> bytes:
        """At `now` of the monotonic clock."""
        return "".join(self._families(now, unix)).encode()

    def _families(self, now: float, unix: float) -> Iterator[str]:
        replica, counts, http = self._replica, self._counts, self.http
        scalars = _engine(replica) | _front(replica, now) | _requests(counts) | _refused(replica, counts) | self._process_values(unix)
        scalars |= self._estimated() | self._process.at(now) | device_values(replica.device, now)
        for source in self.more:
            scalars |= source()
        for metric, value in scalars.items():
            yield self._scalar(metric, value)
        yield from self._histograms(replica, counts)
        seconds = (line for labels, one in http.seconds.items() for line in histogram(names.HTTP_SECONDS, labels, one))
        yield family(names.HTTP_SECONDS, seconds)

    def _estimated(self) -> Scalars:
        """The config is read once the engine has loaded the model: until then nobody has bounded its numbers."""
        if self._work is None and self._replica.limits is not None:
            self._work, self._work_of = self._work_of(), no_work
        if self._work is None:
            return {metric: {} for metric in _ESTIMATES}
        return dict(zip(_ESTIMATES, self._work.estimate(self._replica.tally.computed, self._replica.stats.steps), strict=True))

    def _process_values(self, unix: float) -> Scalars:
        return {
            names.BUILD_INFO: {self._build: 1},
            names.LORA_INFO: {("0", "", ""): unix},
            names.HTTP_REQUESTS: self.http.answered,
            names.RESPONSES: {(status,): count for status, count in self.http.statuses.items()},
        }

    def _scalar(self, metric: Metric, value: float | Values) -> str:
        found: Values = {(): value} if isinstance(value, int | float) else value
        fixed = self._labels if metric.labels[:1] == ("model_name",) else ()
        return family(metric, values(metric, {(*fixed, *labels): one for labels, one in found.items()}))

    def _histograms(self, replica: Replica, counts: Counts) -> Iterator[str]:
        tally, steps, limits = replica.tally, self._steps, replica.limits
        steps[names.ITERATION_TOKENS].take(tally.step_tokens, tally.step_tokens_sum)
        steps[names.STEP_SECONDS].take(tally.step_seconds, tally.step_seconds_sum)
        own = {names.INTER_TOKEN_LATENCY: counts.meter.gaps, names.FINE_INTER_TOKEN: counts.meter.fine_gaps}
        blocks = tally.residence
        steps[names.BLOCK_LIFETIME].take(blocks.lifetime, blocks.lifetime_sum)
        steps[names.BLOCK_IDLE].take(blocks.idle, blocks.idle_sum)
        steps[names.BLOCK_REUSE_GAP].take(blocks.gap, blocks.gap_sum)
        longest = float(limits.max_model_len) if limits else float("inf")
        for metric, found in (own | steps | {one.metric: one for one in counts.histograms.values()}).items():
            upto = longest if metric.buckets is names.TOKEN_BUCKETS else float("inf")
            yield family(metric, histogram(metric, self._labels, found, upto))


def _engine(replica: Replica) -> Scalars:
    stats, tally, limits = replica.stats, replica.tally, replica.limits
    deferred = tally.deferred + stats.compiling + replica.waking
    config = {(str(limits.block_size), str(limits.blocks_total)): 1} if limits else {}
    return {
        names.REQUESTS_RUNNING: stats.running,
        names.REQUESTS_WAITING: stats.waiting + deferred,
        names.WAITING_BY_REASON: {("capacity",): stats.waiting, ("deferred",): deferred},
        names.KV_USAGE: stats.blocks_used / stats.blocks_total if stats.blocks_total else 0.0,
        names.CACHE_CONFIG: config,
        names.SLEEP_STATE: {(state,): state == "awake" for state in _SLEEP},
        names.PREEMPTIONS: stats.preemptions,
        names.PREFIX_QUERIES: stats.prompt_tokens,
        names.PREFIX_HITS: stats.reused_tokens,
        names.CORRUPTED: tally.corrupted,
        names.WAITING_TOKENS: stats.waiting_tokens,
        names.KV_BLOCKS: {("used",): stats.blocks_used, ("free",): stats.blocks_free},
        names.STEPS: stats.steps,
        names.LATE_COMPILATIONS: tally.compiled,
        # What is not built has happened never: zero is the truth, and what reads these names finds them.
        **dict.fromkeys(_NEVER, 0),
        names.ACCEPTED_PER_POSITION: {},
    }


def _refused(replica: Replica, counts: Counts) -> Scalars:
    """By vLLM's reasons: the number of requests here, and the tokens that they wait with. `REFUSALS` has all of the engine's."""
    reasons = {"max_num_queued_reqs": replica.turned_away, "max_num_queued_tokens": sum(counts.refused[reason] for reason in _CROWDED)}
    return {
        names.ADMISSION_REJECTIONS: {(reason,): count for reason, count in reasons.items()},
        names.REFUSALS: {(reason,): counts.refused[reason] for reason in _REFUSALS},
    }


def _front(replica: Replica, now: float) -> Scalars:
    step = 1000 * (now - replica.step_started) / max(1, replica.predicted_step_ms) if replica.step_started else 0.0
    return {
        names.PHASE: {(name.removeprefix("PHASE_").lower(),): number == replica.phase for name, number in Phase.items() if number},
        names.IN_FLIGHT: replica.in_flight,
        names.PREPARING: {("waiting",): replica.preparations.waiting, ("running",): replica.preparations.running},
        names.LOAD_PROGRESS: replica.load_progress,
        names.ENGINE_HEARTBEAT_AGE: max(0.0, now - replica.engine_beat),
        names.STEP_AGE_RATIO: max(0.0, step),
        names.DEEP_CHECKS: {(outcome,): replica.deep.outcomes[outcome] for outcome in OUTCOMES},
    }


def _requests(counts: Counts) -> Scalars:
    cached, slo = counts.cached_tokens, counts.slo
    by_source = {"local_compute": counts.prompt_tokens - cached, "local_cache_hit": cached, "external_kv_transfer": 0}
    targets = {("ttft",): slo.ttft, ("itl",): slo.itl}
    return {
        names.PROMPT_TOKENS: counts.prompt_tokens,
        names.PROMPT_TOKENS_CACHED: cached,
        names.CACHED_BY_SOURCE: {(source,): cached if source == "device" else 0 for source in _SOURCES},
        names.PROMPT_TOKENS_BY_SOURCE: {(source,): tokens for source, tokens in by_source.items()},
        names.GENERATION_TOKENS: counts.generation_tokens,
        names.REQUEST_SUCCESS: {(reason,): counts.finished[reason] for reason in FINISHED},
        names.SLO_TARGET: {labels: target for labels, target in targets.items() if target is not None},
        names.SLO_REQUESTS: counts.verdicts,
        names.GOODPUT_TOKENS: counts.goodput_tokens,
    }
