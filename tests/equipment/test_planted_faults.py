"""The lists of planted faults are up to date: what each changes stands there once, and its tests exist. `make test-full` plants them."""

import ast
from functools import cache
from pathlib import Path

import pytest
from support.suite.planted import Fault, known_faults, planted

ROOT = Path(__file__).parents[2]
faults = cache(known_faults)


@cache
def text(file):
    return (ROOT / file).read_text()


def test_each_fault_has_a_name_of_its_own():
    names = [(fault.component, fault.name) for fault in faults()]
    assert sorted(set(names)) == sorted(names)


def test_each_fault_still_has_its_place_and_its_tests():
    stale = [fault.name for fault in faults() if text(fault.file).count(fault.before) != 1]
    assert stale == []
    lost = [(fault.name, test) for fault in faults() for test in fault.tests if not stands(test)]
    assert lost == []


def stands(test):
    file, _, names = test.partition("::")
    name = names.rpartition("::")[2].partition("[")[0]
    return (ROOT / file).exists() and (not name or name == "runTest" or name in text(file))


def test_a_fault_of_the_unit_tier_is_shown_by_tests_of_that_tier():
    slow = [(fault.name, test) for fault in faults() if fault.tier == "unit" for test in fault.tests if not quick(test)]
    assert slow == []


def quick(test):
    """Whether `make test-unit` runs it: it is a unit test, and nothing about it or its file is deep."""
    file, _, names = test.partition("::")
    if not file.startswith(("tests/unit/", "tests/equipment/")):
        return False
    if "mark.deep" not in text(file):
        return True
    function = names.rpartition("::")[2].partition("[")[0]
    tree = ast.parse(text(file))
    marked = [node for node in ast.walk(tree) if getattr(node, "name", None) == function for node in getattr(node, "decorator_list", ())]
    whole = [node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"]
    return not any("mark.deep" in ast.unparse(node) for node in (*marked, *whole))


@pytest.mark.deep
def test_a_deep_test_is_not_quick():
    here = "tests/equipment/test_planted_faults.py"
    assert not quick(f"{here}::test_a_deep_test_is_not_quick")
    assert quick(f"{here}::test_each_fault_has_a_name_of_its_own")
    assert not quick("tests/parity/test_promlint.py::any")


def test_a_fault_is_planted_in_a_copy_and_taken_out_again(tmp_path):
    (tmp_path / "a.py").write_text("one = 1\n")
    fault = Fault("x", "two", "a.py", "one = 1", "one = 2", ("t",), "unit")
    with planted(tmp_path, fault):
        assert (tmp_path / "a.py").read_text() == "one = 2\n"
    assert (tmp_path / "a.py").read_text() == "one = 1\n"
    missing = Fault("x", "three", "a.py", "three", "four", ("t",), "unit")
    with pytest.raises(ValueError, match="0 times, not once"), planted(tmp_path, missing):
        pass
