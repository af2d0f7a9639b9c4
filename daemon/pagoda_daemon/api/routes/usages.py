"""Usages: the usage that is reported for a request, counted from its deltas. Called by the endpoints; pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET, UnsetType

from pagoda_daemon.api.openai.replies import CompletionDetails, PromptDetails, Usage
from pagoda_daemon.api.openai.trace import Timing
from pagoda_daemon.api.routes.generation import Delta, Submission


class Usages:
    """Counts the tokens of a request's choices as they come. `cached`: of the prompt, where another replica counted it first."""

    def __init__(
        self, jobs: Sequence[Submission], timing: Callable[[], Timing | UnsetType] | None = None, cached: int | None = None
    ) -> None:
        self._timing = timing
        self._counted = cached
        self.prompt_tokens = sum(len(job.message.prompt) for job in jobs)
        self._cached = {job.first: 0 for job in jobs}
        self._answers: dict[int, int] = {}
        self._thoughts: dict[int, int] = {}

    def note(self, delta: Delta) -> None:
        """A prompt's further answers always find it computed: only the first one shows what was known before this request."""
        self._answers[delta.choice] = delta.completion_tokens
        self._thoughts[delta.choice] = delta.reasoning_tokens
        if delta.life is not None and delta.choice in self._cached:
            self._cached[delta.choice] = delta.life.cached_tokens

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached.values()) if self._counted is None else self._counted

    @property
    def completion_tokens(self) -> int:
        return sum(self._answers.values())

    def usage(self) -> Usage:
        answered = self.completion_tokens
        timing = self._timing() if self._timing else UNSET
        details = PromptDetails(self.cached_tokens), CompletionDetails(sum(self._thoughts.values()))
        return Usage(self.prompt_tokens, answered, self.prompt_tokens + answered, *details, timing=timing)
