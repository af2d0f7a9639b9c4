"""Types of arrays that the daemon's parts hand to one another, and the empty ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Seeds = NDArray[np.uint64]


def no_ids() -> Ints:
    """An empty array of ids."""
    return np.zeros(0, np.int32)


def no_floats() -> Floats:
    """An empty array of numbers."""
    return np.zeros(0, np.float32)
