"""All reasons that the operator's code can write into a service's Ready condition, read from its syntax trees."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

OPERATOR = Path(__file__).parents[3] / "operator/pagoda_operator"
# Where a reason stands among the arguments of what carries it.
CARRIERS = {"SpecProblem": 0, "Held": 0, "Verdict": 1}
# Modules whose functions return (reason, message).
TELLERS = ("status", "stages")
PAIRS = ("tuple[str, str]", "tuple[str, str] | None")
# A TenantQuota's status is its own; `replay` writes none.
OTHERS = ("quota", "replay")


def reasons() -> frozenset[str]:
    """Of all modules that have a word in it."""
    paths = [path for path in OPERATOR.rglob("*.py") if path.parent.name not in OTHERS and path.name not in ("__main__.py", "__init__.py")]
    return frozenset(reason for path in paths for reason in _of_module(path))


def _of_module(path: Path) -> Iterator[str]:
    dotted = ".".join(path.relative_to(OPERATOR.parent).with_suffix("").parts)
    source = path.read_text()
    if any(word in source for word in CARRIERS) or path.stem in TELLERS:
        yield from reasons_in(source, vars(importlib.import_module(dotted)), pairs=path.stem in TELLERS)


def reasons_in(source: str, names: Mapping[str, Any], *, pairs: bool) -> Iterator[str]:
    """`names`: what module-level names stand for. ValueError for an expression that this cannot follow: it may be a reason."""
    tree = ast.parse(source)
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
        told = [_argument(node) for node in ast.walk(function) if isinstance(node, ast.Call) and _carries(node)]
        if pairs and function.returns is not None and ast.unparse(function.returns) in PAIRS:
            told += [first for node in ast.walk(function) if isinstance(node, ast.Return) for first in _firsts(node.value)]
        for expression in told:
            yield from _read(expression, function, tree, names)


def _carries(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in CARRIERS


def _argument(call: ast.Call) -> ast.expr:
    assert isinstance(call.func, ast.Name)
    named = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    return named[0] if named else call.args[CARRIERS[call.func.id]]


def _firsts(returned: ast.expr | None) -> Iterator[ast.expr]:
    """Reasons of pairs that are made here; a pair that somebody else made is read there."""
    if isinstance(returned, ast.IfExp):
        yield from _firsts(returned.body)
        yield from _firsts(returned.orelse)
    elif isinstance(returned, ast.Tuple):
        yield returned.elts[0]


def _read(
    expression: ast.expr, function: ast.FunctionDef | ast.AsyncFunctionDef, tree: ast.Module, names: Mapping[str, Any]
) -> Iterator[str]:
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.value
    elif isinstance(expression, ast.IfExp):
        yield from _read(expression.body, function, tree, names)
        yield from _read(expression.orelse, function, tree, names)
    elif isinstance(expression, ast.Name) and isinstance(names.get(expression.id), str):
        yield names[expression.id]
    elif isinstance(expression, ast.Name) and expression.id in (parameters := [one.arg for one in function.args.args]):
        place = parameters.index(expression.id)
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == function.name]:
            yield from _read(call.args[place], function, tree, names)
    elif not _passed_on(expression):
        yield _constant(expression, names)


def _passed_on(expression: ast.expr) -> bool:
    """From something that carries it already, or from a pair."""
    return ast.unparse(expression).endswith(".reason") or ast.unparse(expression) == "reason"


def _constant(expression: ast.expr, names: Mapping[str, Any]) -> str:
    """`module.NAME`."""
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        found = getattr(names.get(expression.value.id), expression.attr, None)
        if isinstance(found, str):
            return found
    raise ValueError(f"line {expression.lineno}: is {ast.unparse(expression)} a reason?")
