"""The table of advisories holds: each names a test that exists, and each reproducer goes red on the bug that it is there for."""

from __future__ import annotations

import importlib.util
import inspect
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.judges import refusals
from support.servers import local_replica
from support.suite.advisory_bugs import PLANTS

ROOT = Path(__file__).parents[2]
TABLE = tomllib.loads((Path(__file__).parent / "advisories.toml").read_text())["advisory"]
DYNAMIC = [entry for entry in TABLE if entry["kind"] == "dynamic"]
# What a reproducer may end with: its own judgement, or the memory that the advisory speaks of. Else a plant broke something else.
RED = (AssertionError, TimeoutError, pytest.fail.Exception, MemoryError)
PAIRS = sorted({(entry["test"], entry["plant"]) for entry in DYNAMIC})


@cache
def module_of(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def function_of(test: str) -> Callable[..., Any]:
    path, _, name = test.partition("::")
    function = getattr(module_of(path), name, None)
    assert function is not None, f"{test} does not exist"
    return function  # type: ignore[no-any-return]


def test_the_table_is_as_large_as_promised() -> None:
    ids = [entry["id"] for entry in TABLE]
    assert len(ids) == len(set(ids)) >= 40
    assert len(DYNAMIC) >= 25
    assert len(PAIRS) >= 25


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["id"])
def test_every_advisory_names_a_test_and_says_why(entry: dict[str, str]) -> None:
    assert function_of(entry["test"]).__name__.startswith("test_")
    assert function_of(entry.get("beside", entry["test"])).__name__.startswith("test_")
    assert entry["kind"] in ("dynamic", "static")
    assert entry["why"]
    assert (entry.get("plant") in PLANTS) is (entry["kind"] == "dynamic")


@pytest.mark.parametrize(("test", "plant"), PAIRS, ids=[f"{test.rpartition('test_')[2]}-{plant}" for test, plant in PAIRS])
async def test_every_reproducer_goes_red_on_its_planted_bug(test: str, plant: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reproducer = function_of(test)
    given = {"tmp_path": tmp_path} if "tmp_path" in inspect.signature(reproducer).parameters else {}
    for module in (refusals, local_replica, module_of(test.partition("::")[0])):
        monkeypatch.setattr(module, "PATIENCE_S", 2.0, raising=False)
    PLANTS[plant](monkeypatch)
    with pytest.raises(RED):
        await reproducer(**given)


def test_every_plant_is_used() -> None:
    assert sorted(PLANTS.keys() - {entry["plant"] for entry in DYNAMIC} - {"the_last_of_two_keys_counts"}) == []
