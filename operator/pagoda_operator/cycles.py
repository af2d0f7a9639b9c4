"""How often Python looks for garbage in cycles. Set once by the door, when all is imported.

Python's own thresholds suit short programs: with 500 services and 20 changes a second each 700th container made it look at the young, and
every 1.3 s at all 200,000, for 0.14 s each in which nothing else ran: a fifth of the operator's CPU, and what came then waited.
What is imported lives as long as the process and is left out.
"""

from __future__ import annotations

import gc
from typing import Final

# Containers that were made and not freed; then so many looks at the younger for one at the next older. Most of what a run leaves is freed
# by its count of references.
_THRESHOLDS: Final = (2_000, 10, 20)


def look_seldom() -> None:
    """For the whole process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
