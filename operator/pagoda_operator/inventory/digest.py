"""A short name for a JSON value. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

_LENGTH: Final = 10


def digest(value: Any) -> str:
    """Ten hexadecimal digits of a JSON value's canonical form: 40 bits, for a handful of revisions per service."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
