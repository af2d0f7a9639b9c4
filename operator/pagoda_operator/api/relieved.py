"""What stands on a Deployment that has, or had, one replica more because those that serve are on devices called faulty. Pure; read by
`state`, written by `plan` in the write that changes the number of replicas: an operator that dies is followed by one that reads both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pagoda_contracts.names import ANNOTATION_RELIEVED

from pagoda_operator.inventory.values import unix

# After a successor that was sick too the next one waits for as long as two replacements are apart, then twice as long each time.
_PAUSE_S: Final = 120.0
_LONGEST_S: Final = 3600.0
_MOST_TRIES: Final = 9
# As somebody else may have written it: what nests deeply ends a parser.
_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Relieved:
    """`replicas`: what it was raised to, one more than asked for, 0 where it is not; `tries`: how many successors in a row were sick too;
    `at`: when the last of them was given up."""

    replicas: int = 0
    tries: int = 0
    at: str = ""

    @property
    def pause_s(self) -> float:
        """How long after `at` no other one is made."""
        return min(_LONGEST_S, _PAUSE_S * 2 ** (self.tries - 1)) if self.tries else 0.0

    def given_up(self, at: str) -> Relieved:
        """One more was sick."""
        return Relieved(0, min(self.tries + 1, _MOST_TRIES), at)

    def written(self) -> str:
        """As it stands there; empty where there is nothing to say."""
        return json.dumps({name: value for name, value in asdict(self).items() if value}) if self != Relieved() else ""


def relieved_of(meta: Mapping[str, Any]) -> Relieved:
    """What an object's annotation says; nothing where it cannot be read."""
    text = (meta.get("annotations") or {}).get(ANNOTATION_RELIEVED, "{}")
    try:
        told = json.loads(text) if len(text) <= _LONGEST else {}
        at = str(told.get("at", ""))
        tries = _count(told.get("tries")) if unix(at) is not None else 0
        return Relieved(_count(told.get("replicas")), min(tries, _MOST_TRIES), at if tries else "")
    except (ValueError, AttributeError):
        return Relieved()


def _count(told: object) -> int:
    return told if isinstance(told, int) and not isinstance(told, bool) and told > 0 else 0
