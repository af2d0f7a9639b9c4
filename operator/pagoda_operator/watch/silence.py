"""Tells watches that have nothing to say from those that say nothing any more. Pure; kept by probes.py, fed by the watches and by check.py.

A watch of an idle kind is silent for minutes, and rightly so: bookmarks come about once a minute, but no server promises them (one without
etcd's progress notifications has none for an idle kind), and seen were 130 s. A connection that is accepted proves nothing either: a watch
that goes on from a version that a restored store has not reached is accepted anew each time and told nothing. What counts is whether
something was kept back. So whoever was silent for `PATIENCE` is compared with a list: where it told all that the list has, it had nothing
to say; else it is deaf until it says something. What it told and the list has no more is repaired and proves nothing: a watch that is
begun anew never tells of what was deleted before.
"""

from __future__ import annotations

from typing import Final

# Half of what makes the process sick (probes.MAX_WATCH_AGE): what was kept back right after the last word is found in time.
PATIENCE: Final = 90.0
# Looks in one patience.
LOOKS: Final = 6


class Silences:
    """By kind, as its watch's path ends. Single writes, hence no lock: the probes' thread reads."""

    def __init__(self) -> None:
        # When it last said something, or a list had nothing that was not told.
        self._sure: dict[str, float] = {}
        # When a list was found to have more, and nothing was heard since.
        self._kept_back: dict[str, float] = {}

    def accepted(self, path: str, now: float) -> None:
        """A connection: of a new one nothing is known yet, a later one proves nothing."""
        self._sure.setdefault(_kind(path), now)

    def heard(self, path: str, now: float) -> None:
        """An event, of a watch or of the list that it begins with, or a bookmark."""
        self._sure[_kind(path)] = now
        self._kept_back.pop(_kind(path), None)

    def compared(self, kind: str, at: float, *, agreed: bool) -> None:
        """A list, complete at that time: whether all that it has was told. What was said later may have been just that."""
        sure = self._sure.get(kind)
        if sure is None or sure > at:
            return
        if not agreed:
            self._kept_back.setdefault(kind, at)
        elif kind not in self._kept_back:
            self._sure[kind] = at

    def doubtful(self, kind: str, now: float) -> bool:
        """Whether to compare it now. What is known to be deaf is compared at every look: somebody must find what it does not tell."""
        return kind in self._kept_back or now - self._sure.get(kind, now) > PATIENCE

    def deaf(self, now: float, most: float) -> list[str]:
        """Kinds whose watch kept something back, and that nothing was sure of for so long."""
        return sorted(kind for kind in self._kept_back.copy() if now - self._sure.get(kind, now) > most)


def _kind(path: str) -> str:
    return path.rpartition("/")[2]
