"""Python's literals and calls with literal arguments, read from the syntax tree. Pure; nothing is evaluated.

Only text, numbers, true, false, none, lists, tuples and dictionaries with text keys are values. Anything else is a ValueError.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_MAX_TEXT: Final = 2**20
_WORDS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None, "none": None}
# Text that nothing closes goes to the end, so that no second quote in it is tried: 16,000 of them took 3 s.
_TEXT: Final = re.compile(r""" "(?:[^"\\]|\\.)*+(?:"|\\?\Z) | '(?:[^'\\]|\\.)*+(?:'|\\?\Z) """, re.DOTALL | re.VERBOSE)
_LETTERS: Final = re.compile(r"(?<![A-Za-z_0-9.])(?>[0-9.]+(?:[eE][-+]?[0-9]+)?)[A-Za-z_]")  # behind a number
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_KNOWN: Final = frozenset("\\'\"abfnrtvxuU\n")


class CallText(NamedTuple):
    """A call as Python writes it."""

    name: str
    arguments: dict[str, Any]


def literal(text: str) -> Any:
    """Returns the value of a literal."""
    return _value(_tree(text))


def call(text: str) -> CallText:
    """Returns name and arguments of `name(key=value, …)`."""
    tree = _tree(text)
    if not isinstance(tree, ast.Call) or tree.args or any(keyword.arg is None for keyword in tree.keywords):
        raise ValueError("no call with named arguments")
    names = [str(keyword.arg) for keyword in tree.keywords]
    if len(set(names)) < len(names):
        raise ValueError("an argument is given twice")
    return CallText(_name(tree.func), {name: _value(keyword.value) for name, keyword in zip(names, tree.keywords, strict=True)})


def _tree(text: str) -> ast.expr:
    """Python warns of unknown escapes in text, as in "\\d", and of letters behind a number: the first are text, the second no literal."""
    if len(text) > _MAX_TEXT or _LETTERS.search(_TEXT.sub("''", text)):
        raise ValueError("no literal")
    try:
        return ast.parse(_ESCAPE.sub(_escape, text.strip()), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:  # a ValueError as well: NUL in the text
        raise ValueError("no Python") from error


def _escape(found: re.Match[str]) -> str:
    return found[0] if found[1] in _KNOWN else f"\\{found[0]}"


def _name(of: ast.expr) -> str:
    if isinstance(of, ast.Name):
        return of.id
    if isinstance(of, ast.Attribute):
        return f"{_name(of.value)}.{of.attr}"
    raise ValueError("no name")


def _value(of: ast.expr) -> Any:
    match of:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(value, bool):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value) for key, value in zip(keys, values, strict=True)}
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case _:
            raise ValueError("no literal")


def _key(of: ast.expr | None) -> str:
    if isinstance(of, ast.Constant) and isinstance(of.value, str):
        return of.value
    raise ValueError("a key is not text")
