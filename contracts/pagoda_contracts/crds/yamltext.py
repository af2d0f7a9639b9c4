"""A YAML writer for generated files: block style, insertion order, JSON-quoted strings where plain ones could be misread.

Contracts carry no YAML library (every component imports contracts), and JSON scalars are YAML scalars, so forty lines suffice.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_RESERVED: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~"})


def dump_yaml(value: dict[str, Any]) -> str:
    """The mapping as YAML text; keys keep their order. ValueError on text that is not printable."""
    return "\n".join(_lines(value, 0)) + "\n"


def _lines(value: Any, indent: int) -> list[str]:
    pad = "  " * indent
    if isinstance(value, dict) and value:
        return [line for key, item in value.items() for line in _entry(f"{pad}{_scalar(key)}:", item, indent)]
    return [line for item in value for line in _item(pad, item, indent)]


def _entry(head: str, item: Any, indent: int) -> list[str]:
    if isinstance(item, dict | list | tuple) and item:
        return [head, *_lines(item, indent + 1 if isinstance(item, dict) else indent)]
    return [f"{head} {_scalar(item)}"]


def _item(pad: str, item: Any, indent: int) -> list[str]:
    if isinstance(item, dict | list | tuple) and item:
        first, *rest = _lines(item, indent + 1)
        return [f"{pad}- {first.lstrip()}", *rest]
    return [f"{pad}- {_scalar(item)}"]


def _scalar(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return "{}" if isinstance(value, dict) else "[]"
    if isinstance(value, str) and not value.replace("\n", "").isprintable():
        raise ValueError(f"{value!r} is not printable text")
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    return json.dumps(value, ensure_ascii=False)
