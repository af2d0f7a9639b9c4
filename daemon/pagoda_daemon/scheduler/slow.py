"""SlowSteps: steps that took much longer than predicted, for one line in the log. Fed by `state`, logged by the engine's loop. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

LEAST_MS: Final = 250.0
"""Shorter steps are no news: nobody sees a quarter of a second, and a busy machine pauses a process for some milliseconds at any time."""
FACTOR: Final = 5.0
EVERY_MS: Final = 10_000.0


class SlowStep(NamedTuple):
    """What it held: rows in all, prompts among them with their tokens, and the tokens that all of them look back at."""

    took_ms: float
    predicted_ms: float
    rows: int
    prompts: int
    prompt_tokens: int
    context: int
    deep_check: bool


class SlowSteps:
    """Since one was last taken: how many there were, and the slowest."""

    def __init__(self) -> None:
        self._worst: SlowStep | None = None
        self._count = 0
        self._taken_ms = float("-inf")

    def add(self, step: SlowStep) -> None:
        """Kept if it is slow by its own prediction."""
        if step.took_ms < max(LEAST_MS, FACTOR * step.predicted_ms):
            return
        self._count += 1
        if self._worst is None or step.took_ms > self._worst.took_ms:
            self._worst = step

    def take(self, now_ms: float) -> dict[str, Any] | None:
        """The fields of a line, at most one in ten seconds."""
        if self._worst is None or now_ms - self._taken_ms < EVERY_MS:
            return None
        fields = {name: round(value, 1) if isinstance(value, float) else value for name, value in self._worst._asdict().items()}
        fields["slow_steps"] = self._count
        self._worst, self._count, self._taken_ms = None, 0, now_ms
        return fields
