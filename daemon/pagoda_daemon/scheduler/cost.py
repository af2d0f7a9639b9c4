"""StepCost: how long a step will probably last, learned online. Fed by `commit` with the injected clock; read by admission and heartbeat.
step_budget: how many tokens a step may have to end in time, by what was learned. Read by `plan` and `forecast`.

Milliseconds are modelled as a constant, and a part for each token of a prompt, each token sampled, each token looked back at, and each
further pair of a prompt's token and one that it looks at. A weighted least-squares fit whose sums forget: each step multiplies the past by
0.998 and counts by the square of its relative, not its absolute error, so that 2 ms decodes and 500 ms chunks are fitted alike. What the
steps of late say nothing about stays as it was: after an hour of decodes alone the cost of a prompt is still known. A step of more than
three times its prediction enters as three times, so one pause of the machine moves nothing much; at the third surprise in a row the past
is all but forgotten, so a device that became slow counts.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

_FORGET = 0.998
_DISBELIEVED = 1e-3
_SURPRISE = 3.0
_CHANGED = 3
# Units that bring the parts to like sizes, so that the small ridge holds none of them more than another.
_UNITS: Final = np.array([1.0, 64.0, 64.0, 16384.0, 2.0**20])
_UNITS_AND_TIME: Final = np.append(_UNITS, 1.0)
_RIDGE = 1e-7
_LEAST_MS = 0.01
_TRUST = 8
_SOLVE_EVERY = 32
_HABIT = 0.1
_EXACT, _MOST_MARGIN = 0.01, 1.5

# Without an objective a step may last so many times what its decodes alone would, and at least so long: nobody reads faster.
_DECODES, _UNNOTICED_MS = 4.0, 50.0


class Work(NamedTuple):
    """What a step computes: tokens fed, tokens that its rows look back at, tokens sampled, and pairs of a token fed and one that it looks
    at. A decode is as many pairs as it looks back at tokens; a chunk of a prompt is many more."""

    tokens: int
    context: int = 0
    sampled: int = 0
    pairs: int = 0

    @classmethod
    def decodes(cls, rows: int, context: int) -> Work:
        """Each of `rows` feeds a token and samples the next."""
        return cls(rows, context, rows, context)

    def with_prompt(self, tokens: int, depth: int) -> Work:
        """And so many tokens of a prompt, behind `depth` that are computed already."""
        pairs = tokens * depth + tokens * (tokens + 1) // 2
        return Work(self.tokens + tokens, self.context + depth + tokens, self.sampled, self.pairs + pairs)

    def parts(self) -> tuple[float, float, float, float, float]:
        """What the model counts. Decodes and prompts have none in common but the constant and the context: where memory is the limit, rows
        that decode cost nothing, which must not be taken for the cost of a prompt's tokens."""
        return 1.0, self.tokens - self.sampled, self.sampled, self.context, max(0, self.pairs - self.context)


class StepCost:
    """Sums of the fit, and the largest step seen: beyond it a prediction is at least proportional. `depth`: how far back a token of a
    prompt looked lately, in the mean. `margin`: of 20 steps with prompts and decodes, one takes more than so many times its prediction."""

    def __init__(self) -> None:
        self._sums = np.zeros((_UNITS.size, _UNITS.size + 1))  # of the parts' products with each other, and with the time
        self._steps = 0
        self._surprises, self._sure_from = 0, _TRUST
        self._known, self._weights = np.zeros(_UNITS.size), [0.0] * _UNITS.size
        self._to_solve = False
        self._largest = (0, 0.0)
        self.depth = 0.0
        self.margin = 1.0

    @property
    def known(self) -> bool:
        """Enough was seen to refuse requests by it."""
        return self._steps >= _TRUST

    def observe(self, work: Work, took_ms: float) -> None:
        took = max(took_ms, _LEAST_MS)
        expected = max(self._milliseconds(work), _LEAST_MS) if self._steps else took
        if self._steps >= self._sure_from and work.tokens <= self._largest[0]:
            surprising = not expected / _SURPRISE <= took <= expected * _SURPRISE
            self._surprises = self._surprises + 1 if surprising else 0
            if self._surprises == _CHANGED:
                self._begin_anew(took / expected)
            else:
                took = min(took, _SURPRISE * expected)
        self._steps += 1
        self._add(work, took, 1.0 / (expected * expected))
        # Solved for again when wanted; every step while few are known or they surprise, as the next surprise is found by it.
        if self._steps < self._sure_from or self._surprises or self._steps % _SOLVE_EVERY == 0:
            self._to_solve = True
        if work.tokens >= self._largest[0]:
            self._largest = (work.tokens, took)
        if work.tokens > work.sampled > 0 and self._steps > _TRUST:
            self._widen(took / expected)
        if work.tokens > work.sampled:
            self.depth += _HABIT * (max(0, work.pairs - work.context) / (work.tokens - work.sampled) - self.depth)

    def _widen(self, ratio: float) -> None:
        """No device is linear, and none takes the same time twice."""
        late = ratio > self.margin + _EXACT
        self.margin = min(max(self.margin + _HABIT * (0.95 if late else -0.05), 1.0), _MOST_MARGIN)

    def _begin_anew(self, slower: float) -> None:
        self._sums *= _DISBELIEVED
        self._known *= slower
        self._surprises, self._sure_from, self._largest = 0, self._steps + _TRUST, (0, 0.0)

    def _add(self, work: Work, took: float, weight: float) -> None:
        row = np.array((*work.parts(), took)) / _UNITS_AND_TIME
        self._sums *= _FORGET
        self._sums += row[:-1, None] * (weight * row)

    def parts_us(self) -> tuple[float, float, float, float]:
        """Microseconds per step, per token of a prompt as deep as they were lately, per token looked back at, and per token sampled;
        zeros while nothing was observed."""
        if not self._steps:
            return 0.0, 0.0, 0.0, 0.0
        base, prompt, sampled, context, pair = (1000.0 * part for part in self._solved())
        return base, prompt + pair * self.depth, context, sampled

    def milliseconds(self, work: Work) -> float:
        """Predicted; 0 while nothing was observed."""
        if not self._steps:
            return 0.0
        largest, took = self._largest
        beyond = took * work.tokens / largest if work.tokens > largest else 0.0
        return max(self._milliseconds(work), beyond, _LEAST_MS)

    def predict(self, work: Work) -> int:
        """Whole milliseconds, at least 1; 0 while nothing was observed."""
        return max(1, round(self.milliseconds(work))) if self._steps else 0

    def _milliseconds(self, work: Work) -> float:
        return sum(weight * part for weight, part in zip(self._solved(), work.parts(), strict=True))

    def _solved(self) -> list[float]:
        if self._to_solve:
            self._known = _solve(self._sums[:, :-1], self._sums[:, -1], self._known)
            self._weights, self._to_solve = (self._known / _UNITS).tolist(), False
        return self._weights


def _solve(gram: NDArray[np.float64], moment: NDArray[np.float64], known: NDArray[np.float64]) -> NDArray[np.float64]:
    """The fit without negative parts: no step gets faster by doing more. A part that comes out negative is left out. Of what the sums say
    nothing about, what was `known` holds."""
    ridge = _RIDGE * gram[0, 0]
    full, right = gram + np.eye(known.size) * ridge, moment + ridge * known
    keep, found = np.ones(known.size, np.bool_), np.zeros(known.size)
    while keep.any():
        found[:] = 0.0
        found[keep] = np.linalg.solve(full[np.ix_(keep, keep)], right[keep])
        if (found >= 0).all():
            break
        keep &= found > 0
    return found


Bound = Literal["full", "alone", "unlearned", "time", "least"]
BOUNDS: Final[tuple[Bound, ...]] = get_args(Bound)


class StepBudget(NamedTuple):
    """Tokens of a step, its decodes among them, and what bounds them: the configured budget (`full`), the same because nobody waits for a
    decode (`alone`) or because too few steps were seen (`unlearned`), the time, or the least progress of prompts."""

    tokens: int
    bound: Bound


class Within(NamedTuple):
    """`most` tokens in any step, at least `least` of prompts in each; no gap between two tokens shall exceed `itl_ms`. None: four times
    the decodes alone, at least 50 ms."""

    most: int
    least: int
    itl_ms: float | None = None


def step_budget(cost: StepCost, decodes: Work, depth: int, within: Within) -> StepBudget:
    """The most tokens with which a step is predicted to end in time for its `decodes`; prompts stand behind `depth` computed tokens.
    Nobody waits for a token of a step without decodes."""
    most = within.most - decodes.tokens
    if not decodes.tokens:
        return StepBudget(within.most, "alone")
    if not cost.known:
        return StepBudget(within.most, "unlearned")
    itl_ms = max(_DECODES * cost.milliseconds(decodes), _UNNOTICED_MS) if within.itl_ms is None else within.itl_ms
    fit = bisect_right(range(1, most + 1), itl_ms / cost.margin, key=lambda tokens: cost.milliseconds(decodes.with_prompt(tokens, depth)))
    if fit >= most:
        return StepBudget(within.most, "full")
    if fit >= within.least:
        return StepBudget(decodes.tokens + fit, "time")
    return StepBudget(decodes.tokens + min(within.least, most), "least")
