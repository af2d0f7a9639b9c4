"""Durations and quantities as Kubernetes users write them, parsed in one place.

Durations are Go duration strings (`800ms`, `10m`, `1h30m`), sizes and cores are Kubernetes quantities (`250m`, `4Gi`, `2`).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

DURATION_PATTERN: Final = r"^([0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h)){1,4}$"
QUANTITY_PATTERN: Final = r"^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"

_DURATION_PART = re.compile(r"([0-9.]+)(ms|s|m|h)")
_SECONDS: Final = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_QUANTITY = re.compile(r"^([0-9.]+)([a-zA-Z]*)$")
_SCALE: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
}
_SUFFIXES: Final = _SCALE | {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18,
    "Pi": Decimal(2) ** 50,
    "Ei": Decimal(2) ** 60,
}
# Longer texts are refused, so that no object makes us count to 10 to the billionth.
_ANY_QUANTITY: Final = re.compile(
    r"^([+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40}))(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)$", re.ASCII
)


def parse_duration(text: str) -> float:
    """Seconds of a Go duration string; ValueError names the value and what is accepted."""
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a duration: use numbers with ms, s, m or h, such as 800ms, 30s or 1h30m")
    return float(sum(Decimal(n) * _SECONDS[unit] for n, unit in _DURATION_PART.findall(text)))


def parse_quantity(text: str) -> Decimal:
    """Exact value of a Kubernetes quantity (cores, bytes); ValueError names the value and what is accepted."""
    match = _QUANTITY.match(text) if re.fullmatch(QUANTITY_PATTERN, text) else None
    if match is None:
        raise ValueError(f"{text!r} is not a quantity: use a number with m, k, M, G, T, Ki, Mi, Gi or Ti, such as 250m or 4Gi")
    return Decimal(match[1]) * _SCALE[match[2]]


def read_quantity(value: Any) -> Decimal:
    """What other people's objects say, in all that Kubernetes allows: `.5`, `+1`, `1e3`, `2Ei`. Nothing, or what is no quantity, is 0."""
    match = _ANY_QUANTITY.match(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if match is None:
        return Decimal(0)
    number, exponent, suffix = match.groups()
    return Decimal(number) * (Decimal(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""])


def _text_of_duration(value: Any) -> Any:
    if isinstance(value, int | float):
        raise PydanticCustomError("duration", "must be a duration such as 2s")
    return value


def _duration(text: str) -> str:
    parse_duration(text)
    return text


def _quantity(value: Any) -> Any:
    if isinstance(value, float | bool):
        raise ValueError(f"{value!r} is not a quantity: write a number with a point as text, such as '0.5', or as 500m")  # noqa: TRY004 (pydantic maps ValueError)
    return str(value) if isinstance(value, int) else value


def _checked_quantity(text: str) -> str:
    # The schema's pattern holds for strings only: the rule beside it refuses the integers 0 and -1.
    if parse_quantity(text) <= 0:
        raise ValueError(f"{text!r}: {QUANTITY_MESSAGE}")
    return text


QUANTITY_CEL: Final = "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0'))"
QUANTITY_MESSAGE: Final = "must be a quantity above 0, such as 250m or 4Gi (2Gi, not 2GB)"

Duration = Annotated[
    str,
    BeforeValidator(_text_of_duration),
    AfterValidator(_duration),
    WithJsonSchema({"type": "string", "maxLength": 48, "pattern": DURATION_PATTERN}),
]
"""A Go duration string; `parse_duration` gives its seconds."""

Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    AfterValidator(_checked_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": 32,
            "pattern": QUANTITY_PATTERN,
            "x-kubernetes-int-or-string": True,
            "x-kubernetes-validations": [{"rule": QUANTITY_CEL, "message": QUANTITY_MESSAGE}],
        }
    ),
]
"""A Kubernetes quantity, an integer or a string on the wire, a string here; `parse_quantity` gives its value."""
