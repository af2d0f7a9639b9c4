"""What a request says of the calls in its answers, as far as their parser needs it. Types only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Shape = Literal["free", "calls", "either"]
"""Of an answer: text and calls as the model likes, nothing but calls, or calls or else text of a format."""


@dataclass(frozen=True)
class Wish:
    """Calls beyond `most` are content. `parameters`: each tool's JSON schema by its name, for forms that write values without types."""

    most: int | None = None
    shape: Shape = "free"
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
