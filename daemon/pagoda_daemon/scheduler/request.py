"""Request: the cold half of a request, what no step reads. Made by `scheduler.admission`, kept by queue and rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagoda_daemon.core.arrays import Floats, Ints
from pagoda_daemon.core.messages import Grammar, Life
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.kv.chain import Chain

MAX_PRIORITY = 1000
_PER_TIER = 1 << 16
FIRST_BATCH = _PER_TIER - MAX_PRIORITY
"""Least rank of the tier batch."""


def rank_of(tier: str, priority: int) -> int:
    """The class: lower is served first. Interactive before batch, then the larger priority."""
    return (_PER_TIER if tier == "batch" else 0) - priority


@dataclass(slots=True)
class Course:
    """What happened to a request so far, on the engine's clock. Written where it happens, never once per token."""

    submitted_ms: float = 0.0
    seated_ms: float | None = None
    first_token_ms: float | None = None
    cached: int = 0
    computed: int = 0
    chunks: int = 0
    preemptions: int = 0

    def life(self, now_ms: float) -> Life | None:
        """For the client; None where it never had a row."""
        if self.seated_ms is None:
            return None
        first = now_ms if self.first_token_ms is None else self.first_token_ms
        # A step that failed has no time, so an end may seem to come before its beginning.
        waited, prefilled = self.seated_ms - self.submitted_ms, max(0.0, first - self.seated_ms)
        return Life(waited, prefilled, self.cached, self.computed, self.chunks, self.preemptions)


@dataclass(slots=True)
class Request:
    """One answer: choice `index` of request `request_id`. `tokens` holds all known ones while it waits; `blocks` and `logprob_bytes` are
    its share of the request's worst case. `deadline_ms` is infinite where there is none; `group` joins the choices of one request, which
    share their prompt. The front has the log-probabilities of `scored` prompt tokens; as long as it wants more, each must be computed:
    `reuses` is False. Where it is pooled, `pooled` is the sum of the states of its first `scored` tokens. Where there is a `grammar`, the
    token that follows all known ones waits for its `mask`; `watched` once a matcher was asked for. `retried`: a step of it raised and it
    was begun anew, which is done once. `adapter` is the slot of its LoRA adapter, 0 for none."""

    request_id: str
    index: int
    arrival: int
    tokens: Ints
    prompt_len: int
    sampling: Sampling
    seed: int
    chain: Chain
    tenant: int = 0
    rank: int = 0
    deadline_ms: float = float("inf")
    blocks: int = 0
    logprob_bytes: int = 0
    group: str | None = None
    charged: bool = False
    reuses: bool = True
    scored: int = 0
    pooled: Floats | None = None
    retried: bool = False
    course: Course = field(default_factory=Course)
    grammar: Grammar | None = None
    adapter: int = 0
    mask: Ints | None = None
    watched: bool = False

    @property
    def waits(self) -> bool:
        """Nothing can be sampled yet."""
        return self.grammar is not None and self.mask is None

    @property
    def key(self) -> str:
        """Names the choice. A control character cannot be in an id that came through a header."""
        return choice_key(self.request_id, self.index)

    @property
    def last_len(self) -> int:
        """Known tokens when the request is complete; the last one is never computed."""
        return self.prompt_len + self.sampling.max_tokens

    @property
    def generated(self) -> int:
        return int(self.tokens.size) - self.prompt_len


def choice_key(request_id: str, index: int) -> str:
    """The first choice goes by the request's own id."""
    return f"{request_id}\x1f{index}" if index else request_id
