"""The gateway as installed, but for what a test changes: `gateway_under_test.py CHANGES OPTIONS...`, CHANGES being a JSON object.

`under_test(patience_ms=600_000)` is `start_gateway`'s `program`. A name that `Changes` does not have is refused, in the test already.
Run as a script it has nothing of the tests on its path.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Changes:
    patience_ms: int | None = None  # after that a replica is suspect, and silent; after twice that it is dialled anew
    key_settle_s: float | None = None  # for how long a token that a new key signed is not shown


def under_test(**changes: Any) -> tuple[str, ...]:
    return (__file__, json.dumps(asdict(Changes(**changes))))


def main() -> None:
    """The contracts are changed before the gateway's modules read them."""
    from pagoda_contracts import bearer, names

    changes = Changes(**json.loads(sys.argv.pop(1)))
    if changes.patience_ms is not None:
        _put(names, "STATE_SUSPECT_MS", changes.patience_ms)
        _put(names, "STATE_DEAD_MS", changes.patience_ms)
    if changes.key_settle_s is not None:
        _put(bearer, "SETTLE_S", changes.key_settle_s)
    from pagoda_gateway.__main__ import main as gateway

    gateway()


def _put(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} by now: nothing would change"
    setattr(owner, name, value)


if __name__ == "__main__":
    main()
