"""Request: the cold half of a request, what no step reads. Made by `scheduler.admission`, kept by queue and rows."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda_daemon.batch import Ints
from pagoda_daemon.engine.messages import Sampling
from pagoda_daemon.kv.accounts import Chain

MAX_PRIORITY = 1000
_PER_TIER = 1 << 16
FIRST_BATCH = _PER_TIER - MAX_PRIORITY
"""Least rank of the tier batch."""


def rank_of(tier: str, priority: int) -> int:
    """The class: lower is served first. Interactive before batch, then the larger priority."""
    return (_PER_TIER if tier == "batch" else 0) - priority


@dataclass(slots=True)
class Request:
    """One answer: choice `index` of request `request_id`. `tokens` holds all known ones while it waits; `blocks` and `logprob_bytes` are
    its share of the request's worst case. `deadline_ms` is infinite where there is none; `group` joins the choices of one request, which
    share their prompt. The front has the log-probabilities of `scored` prompt tokens; as long as it wants more, each must be computed:
    `reuses` is False."""

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
