"""Values as the API server writes them: JSON, times, and a short name for a JSON value. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

Json = Mapping[str, Any]

_LENGTH: Final = 10


def digest(value: Any) -> str:
    """Ten hexadecimal digits of a JSON value's canonical form: 40 bits, for a handful of revisions per service."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def stamp(now: float) -> str:
    """A time as the API server writes it, in whole seconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(stamp: str | None) -> float | None:
    """Seconds of a time as the API server writes it; None where absent or unreadable."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else None
    except ValueError:
        return None
