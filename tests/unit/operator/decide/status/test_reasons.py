"""Reasons of conditions stand in contracts/pagoda_contracts/conditions/ and nowhere else, and each of them is used."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pagoda_operator
import pagoda_placement
import pytest
from pagoda_contracts.conditions import adapter, health, quota, service
from pagoda_contracts.conditions.table import reasons
from pagoda_contracts.conditions.types import DEGRADED, RECONCILING, SERVING, STALLED, Reason

PACKAGES = tuple(Path(package.__file__).parent for package in (pagoda_operator, pagoda_placement))
# Ready is also Kubernetes' own word, of pods and nodes.
WORDS = {reason.name for reason in reasons()} | {kind.name for kind in (RECONCILING, STALLED, SERVING, DEGRADED)}
# `status.rollout.phase` has words of its own, one of which is a reason too.
PHASE = "phase"


def literals(source: str) -> Iterator[str]:
    """Words of conditions that stand in a source as strings; docstrings are sentences and never equal one."""
    tree = ast.parse(source)
    phases = {id(node) for part in ast.walk(tree) for node in of_a_phase(part)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in WORDS and id(node) not in phases:
            yield node.value


def of_a_phase(node: ast.AST) -> list[ast.expr]:
    """What is compared with a `phase` or written as one."""
    if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == PHASE:
        return node.comparators
    if isinstance(node, ast.Dict):
        return [value for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant) and key.value == PHASE]
    return []


def used(source: str) -> set[str]:
    """Names that a source reads, and attributes that it takes of other names."""
    nodes = list(ast.walk(ast.parse(source)))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in package.rglob("*.py"))


def test_no_source_of_operator_and_placement_types_a_reason_or_makes_one():
    assert {str(path): found for path in sources() if (found := list(literals(path.read_text())))} == {}
    assert [path.name for path in sources() if "Reason(" in path.read_text()] == []


def test_each_reason_is_used_by_operator_or_placement():
    taken = {name for path in sources() for name in used(path.read_text())}
    constants = {name for module in (service, health, quota, adapter) for name, value in vars(module).items() if isinstance(value, Reason)}
    assert constants - taken == set()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('SpecProblem("InvalidSpec", why)', ["InvalidSpec"]),
        ('return "Stalled" if held else "Other"', ["Stalled"]),
        ('record.phase == "RolledBack"', []),
        ('copy(update={"phase": "RolledBack", "reason": why})', []),
        ('copy(update={"phase": why, "reason": "RolledBack"})', ["RolledBack"]),
    ],
)
def test_a_typed_reason_is_found_and_a_phase_is_none(line, found):
    assert list(literals(f"def f():\n    {line}\n")) == found
