"""The border: a Hugging Face config.json becomes `Config`, a reader that never guesses and names what is missing.

Called by `families`. Reads no file (the CLI does) and knows no architecture.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from pagoda_sizing.errors import BadConfig, UnknownQuantisation
from pagoda_sizing.stored import stored_as

LARGEST = 1 << 40  # no dimension of any model is near it; a larger number is a typo that would overflow every table


@dataclass(frozen=True)
class Config:
    """A parsed config.json. `defaults` are those of the architecture's own config class, for keys that publishers omit."""

    raw: dict[str, Any]
    defaults: dict[str, Any]

    def get(self, key: str) -> Any:
        """The value, else the class default, else None."""
        value = self.raw.get(key)
        return self.defaults.get(key) if value is None else value

    def number(self, *keys: str, minimum: int = 1) -> int:
        """A whole number under the first of `keys` that is present; absent is refused."""
        for key in keys:
            if self.get(key) is not None:
                return self._checked(key, self.get(key), minimum)
        raise BadConfig(f"config.json: {keys[0]} is missing; it must be a whole number of at least {minimum}")

    def optional(self, key: str, minimum: int = 1) -> int | None:
        """A whole number, or None where absent."""
        value = self.get(key)
        return None if value is None else self._checked(key, value, minimum)

    def flag(self, key: str) -> bool:
        """A boolean; absent is False unless the architecture's class says otherwise."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadConfig(f"config.json: {key} must be true or false, got {value!r}")
        return bool(value)

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; absent is `default`, or refused where there is none."""
        value = default if self.get(key) is None else self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise BadConfig(f"config.json: {key} must be a finite number above 0, got {value!r}")
        return float(value)

    def text(self, key: str) -> str | None:
        """A string, or None where absent."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise BadConfig(f"config.json: {key} must be a string, got {value!r}")
        return value

    def section(self, key: str) -> dict[str, Any] | None:
        """A nested object, or None where absent."""
        value = self.raw.get(key)
        if value is not None and not isinstance(value, dict):
            raise BadConfig(f"config.json: {key} must be an object, got {value!r}")
        return value

    def names(self, key: str, length: int) -> tuple[str, ...] | None:
        """A list of `length` strings, or None where absent."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(isinstance(item, str) for item in value):
            raise BadConfig(f"config.json: {key} must be a list of {length} strings, one per layer")
        return tuple(value)

    @staticmethod
    def _checked(key: str, value: Any, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= LARGEST:
            raise BadConfig(f"config.json: {key} must be a whole number of at least {minimum}, got {value!r}")
        return value


def parse_json(text: str, name: str = "config.json") -> dict[str, Any]:
    """Returns config.json's object; BadConfig calls the file by its name."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise BadConfig(f"{name} is not JSON: {error}") from error
    except RecursionError:
        raise BadConfig(f"{name} is nested too deeply") from None
    if not isinstance(found, dict):
        raise BadConfig(f"{name} must be an object, got {type(found).__name__}")
    return found


def declared_quantisation(raw: dict[str, Any]) -> str:
    """The format that the checkpoint says it is stored in; bf16 where it says nothing. What no daemon reads can still be planned for."""
    try:
        stored = stored_as(raw)
    except UnknownQuantisation:
        section = raw["quantization_config"]
        declared = (section.get("quant_method"), section.get("bits")) if isinstance(section, dict) else None
        known: dict[Any, str] = {("fp8", None): "fp8", ("awq", 4): "int4", ("gptq", 4): "int4", ("gptq", 8): "int8"}
        if declared is None or not all(isinstance(one, str | int | None) for one in declared) or declared not in known:
            raise
        return known[declared]
    return "bf16" if stored is None else stored.form
