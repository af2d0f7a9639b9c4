"""Verdicts on grammars that were compiled, by their digests. Kept by `pool`; pure.

Bad ones are remembered longer than good ones. A good one that is forgotten costs milliseconds, a bad one all that a grammar may cost.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

PASSED: Final = 512
REFUSED: Final = 4096
"""At most 700 bytes each, reason included: 3 MB."""


class Verdicts:
    """The least recently used ones are forgotten."""

    def __init__(self, passed: int = PASSED, refused: int = REFUSED) -> None:
        self._most = {True: passed, False: refused}
        self._kept: dict[bool, OrderedDict[str, str]] = {True: OrderedDict(), False: OrderedDict()}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def passed(self, digest: str) -> bool:
        """The grammar can be used."""
        return self._look(digest, good=True) is not None

    def why_not(self, digest: str) -> str | None:
        """Why the grammar cannot be used; None if it can, or if that is unknown."""
        return self._look(digest, good=False)

    def note(self, digest: str, why: str | None) -> None:
        """It passed, or `why` it did not. The newest verdict counts."""
        good = why is None
        self._kept[not good].pop(digest, None)
        kept = self._kept[good]
        kept[digest] = why or ""
        kept.move_to_end(digest)
        if len(kept) > self._most[good]:
            kept.popitem(last=False)

    def _look(self, digest: str, *, good: bool) -> str | None:
        kept = self._kept[good]
        if digest in kept:
            kept.move_to_end(digest)
        return kept.get(digest)
