"""When requests are sent. Pure: the times of a whole run are drawn before it, so that a slow answer delays no request after it."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

MAX_RATE: Final = 1e6


def arrivals(count: int, rate: float, burstiness: float, luck: np.random.Generator) -> list[float]:
    """Seconds from the start, one for each request, the first one at 0. `rate` requests per second on average; infinity: all at once.

    Intervals are drawn from a gamma distribution with the shape `burstiness`: 1 is a Poisson process, less is burstier, infinity sends at
    equal intervals. As vLLM does, they are scaled so that the run has exactly the rate that was asked for.
    """
    if not math.isfinite(rate) or count < 2:
        return [0.0] * count
    if math.isinf(burstiness):
        return [at / rate for at in range(count)]
    drawn = np.cumsum(luck.gamma(burstiness, 1.0 / (rate * burstiness), count - 1))
    return [0.0, *(drawn * ((count - 1) / rate / drawn[-1])).tolist()]
