"""StepCost: how long a step will probably last, learned online. Fed by `commit` with the injected clock; read by admission and heartbeat.

Milliseconds are modelled as base + per_token * tokens + per_context * context, context being the tokens that the step's rows look back at.
A weighted least-squares fit whose sums forget: each step multiplies the past by 0.998 and counts by the square of its relative, not its
absolute error, so that 2 ms decodes and 500 ms chunks are fitted alike. A step of more than three times its prediction enters as three
times, so one pause of the machine moves nothing much; at the third surprise in a row the past is all but forgotten, so a device that
became slow counts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FORGET = 0.998
_DISBELIEVED = 1e-3
_SURPRISE = 3.0
_CHANGED = 3
# Units that bring the three parts to like sizes, so that the small ridge shrinks none of them more than another.
_TOKENS, _CONTEXT = 64.0, 16384.0
_RIDGE = 1e-7
_LEAST_MS = 0.01
_TRUST = 8
_SOLVE_EVERY = 32


class StepCost:
    """Sums of the fit, and the largest step seen: beyond it a prediction is at least proportional."""

    def __init__(self) -> None:
        self._gram = [0.0] * 6
        self._moment = [0.0] * 3
        self._steps = 0
        self._surprises, self._sure_from = 0, _TRUST
        self._weights: NDArray[np.float64] | None = None
        self._largest = (0, 0.0)

    @property
    def known(self) -> bool:
        """Enough was seen to refuse requests by it."""
        return self._steps >= _TRUST

    def observe(self, tokens: int, context: int, took_ms: float) -> None:
        took = max(took_ms, _LEAST_MS)
        expected = max(self._milliseconds(tokens, context), _LEAST_MS) if self._steps else took
        if self._steps >= self._sure_from and tokens <= self._largest[0]:
            surprising = not expected / _SURPRISE <= took <= expected * _SURPRISE
            self._surprises = self._surprises + 1 if surprising else 0
            if self._surprises == _CHANGED:
                self._begin_anew()
            else:
                took = min(took, _SURPRISE * expected)
        self._steps += 1
        self._add(tokens / _TOKENS, context / _CONTEXT, took, 1.0 / (expected * expected))
        # Solved for again when wanted; every step while few are known or they surprise, as the next surprise is found by it.
        if self._steps < self._sure_from or self._surprises or self._steps % _SOLVE_EVERY == 0:
            self._weights = None
        if tokens >= self._largest[0]:
            self._largest = (tokens, took)

    def _begin_anew(self) -> None:
        self._gram = [_DISBELIEVED * old for old in self._gram]
        self._moment = [_DISBELIEVED * old for old in self._moment]
        self._surprises, self._sure_from, self._largest = 0, self._steps + _TRUST, (0, 0.0)

    def _add(self, x: float, y: float, took: float, weight: float) -> None:
        parts = (weight, weight * x, weight * y, weight * x * x, weight * x * y, weight * y * y)
        self._gram = [_FORGET * old + new for old, new in zip(self._gram, parts, strict=True)]
        moment = (weight * took, weight * x * took, weight * y * took)
        self._moment = [_FORGET * old + new for old, new in zip(self._moment, moment, strict=True)]

    def parts_us(self) -> tuple[float, float, float]:
        """Microseconds per step, per token and per token looked back at; zeros while nothing was observed."""
        if not self._steps:
            return 0.0, 0.0, 0.0
        if self._weights is None:
            self._weights = _solve(self._gram, self._moment)
        base, per_token, per_context = (1000.0 * float(part) for part in self._weights)
        return base, per_token / _TOKENS, per_context / _CONTEXT

    def milliseconds(self, tokens: int, context: int = 0) -> float:
        """Predicted; 0 while nothing was observed."""
        if not self._steps:
            return 0.0
        largest, took = self._largest
        beyond = took * tokens / largest if tokens > largest else 0.0
        return max(self._milliseconds(tokens, context), beyond, _LEAST_MS)

    def predict(self, tokens: int, context: int = 0) -> int:
        """Whole milliseconds, at least 1; 0 while nothing was observed."""
        return max(1, round(self.milliseconds(tokens, context))) if self._steps else 0

    def _milliseconds(self, tokens: int, context: int) -> float:
        if self._weights is None:
            self._weights = _solve(self._gram, self._moment)
        base, per_token, per_context = self._weights
        return float(base + per_token * tokens / _TOKENS + per_context * context / _CONTEXT)


def _solve(gram: list[float], moment: list[float]) -> NDArray[np.float64]:
    """The fit without negative parts: no step gets faster by doing more. A part that comes out negative is left out."""
    full = np.array([[gram[0], gram[1], gram[2]], [gram[1], gram[3], gram[4]], [gram[2], gram[4], gram[5]]])
    full += np.eye(3) * _RIDGE * full[0, 0]
    right, keep = np.array(moment), np.ones(3, np.bool_)
    found = np.zeros(3)
    while keep.any():
        found[:] = 0.0
        found[keep] = np.linalg.solve(full[np.ix_(keep, keep)], right[keep])
        if (found >= 0).all():
            break
        keep &= found > 0
    return found
