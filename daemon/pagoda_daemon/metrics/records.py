"""Record: what one request went through, in times and counts; never text, never a key. And the ring of the latest ones.

Made by `counts`, read by the trace endpoint and by the timings in `usage`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from pagoda_daemon.core.messages import Life, RowOutput, Submit
from pagoda_daemon.metrics.gaps import Gaps

ABORTED: Final = "abort"
FAILED: Final = "error"
REFUSED: Final = "refused"


@dataclass(slots=True)
class Record:
    """Times are seconds of the monotonic clock. `ends` and `lives` by answer; an answer without an end has ended for `reason`, which is
    "abort" unless something else is set, because a client that leaves sends nothing. `tenant`: only it may read the record."""

    request_id: str
    arrived: float
    submitted: float
    prompt_tokens: int
    max_tokens: int
    choices: int = 1
    tenant: str = ""
    first_token: float | None = None
    ended: float | None = None
    reason: str = ABORTED
    refusal: str = ""
    completion_tokens: int = 0
    gaps: Gaps = field(default_factory=Gaps)
    ends: dict[int, str] = field(default_factory=dict)
    lives: dict[int, Life] = field(default_factory=dict)

    @classmethod
    def of(cls, message: Submit, arrived: float, sent: float) -> Record:
        return cls(message.request_id, arrived, sent, len(message.prompt), message.sampling.max_tokens, message.n, message.tenant)

    def hear(self, row: RowOutput) -> None:
        """An output that says something about the request's life."""
        if row.life is not None:
            self.lives[row.index] = row.life
        if row.refusal is not None and row.finish_reason == REFUSED:
            self.reason, self.refusal = REFUSED, row.refusal.reason

    def end(self, index: int, reason: str, tokens: int) -> None:
        """One answer is complete."""
        self.ends[index] = reason
        self.completion_tokens += tokens

    @property
    def reasons(self) -> list[str]:
        """Of every answer."""
        return [self.ends.get(index, self.reason) for index in range(self.choices)]

    def fail(self) -> None:
        """It ends with an error; a refusal stays a refusal."""
        if self.reason != REFUSED:
            self.reason = FAILED

    def fail_all(self) -> None:
        """Its answers came, and could not be written: each of them failed."""
        self.ends.clear()
        self.reason = FAILED

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, counted once however many answers there are."""
        return self.lives[0].cached_tokens if 0 in self.lives else 0

    @property
    def per_token_s(self) -> float | None:
        """Mean time per token after the first; None where there is no second one."""
        if self.first_token is None or self.ended is None or self.completion_tokens <= self.choices:
            return None
        return (self.ended - self.first_token) * self.choices / (self.completion_tokens - self.choices)


class Ring:
    """The records of the latest `most` requests, fewer where these have more than `answers` answers; those under way included. The oldest
    is forgotten first, finished or not. A request of several prompts has one record for each, told apart by what follows the dash in its
    id: 2,048 inputs to embed are 1.3 MB, and 2,048 such requests would be 2.7 GB."""

    def __init__(self, most: int = 2048, answers: int = 16_384) -> None:
        self._most = most
        self._most_answers = answers
        self._answers = 0
        self._records: OrderedDict[str, list[Record]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        self._records.setdefault(record.request_id.partition("-")[0], []).append(record)
        self._answers += record.choices
        while len(self._records) > self._most or (self._answers > self._most_answers and len(self._records) > 1):
            _, forgotten = self._records.popitem(last=False)
            self._answers -= sum(one.choices for one in forgotten)

    def get(self, request_id: str) -> tuple[Record, ...]:
        return tuple(self._records.get(request_id, ()))
