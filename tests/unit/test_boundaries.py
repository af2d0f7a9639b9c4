"""Every entry point imports without its forbidden packages: the third guard besides import-linter and the single-extra installs."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from support.suite.opens import opened

ROOT = Path(__file__).parents[2]

TORCH = {"torch", "triton", "transformers", "safetensors"}
CLUSTER = {"kopf", "kubernetes", "kubernetes_asyncio"}
HTTP = {"starlette", "uvicorn", "aiohttp", "zmq", "grpc"}

CASES = [
    ("pagoda_daemon.__main__", CLUSTER | {"pagoda_operator", "pagoda_gateway", "pagoda_devcluster"}),
    ("pagoda_daemon.api.front.process", CLUSTER | {"opentelemetry"}),
    ("pagoda_daemon.engine.__main__", CLUSTER | {"torch", "transformers", "starlette", "uvicorn", "grpc"}),
    ("pagoda_daemon.bench.command", CLUSTER | TORCH | {"starlette", "uvicorn", "zmq", "grpc"}),
    ("pagoda_daemon.offline", CLUSTER | {"torch", "transformers", "uvicorn"}),
    ("pagoda_daemon.scheduler", CLUSTER | TORCH | HTTP),
    ("pagoda_daemon.kv", CLUSTER | TORCH | HTTP),
    ("pagoda_operator.__main__", TORCH | {"pagoda_daemon", "pagoda_gateway", "pagoda_devcluster"}),
    ("pagoda_operator.serve.process", TORCH | {"pagoda_daemon", "pagoda_gateway", "pagoda_devcluster"}),
    ("pagoda_operator.decide.plan", TORCH | CLUSTER | HTTP),
    ("pagoda_gateway.__main__", TORCH | {"kopf", "pagoda_daemon", "pagoda_operator", "pagoda_devcluster"}),
    ("pagoda_gateway.routing.pick", TORCH | CLUSTER | HTTP),
    ("pagoda_fetch.__main__", TORCH | CLUSTER | {"obstore", "huggingface_hub", "pagoda_daemon", "pagoda_operator", "pagoda_sizing"}),
    ("pagoda_fetch.serve.sidecar", TORCH | CLUSTER | {"starlette", "aiohttp", "zmq", "pagoda_daemon", "pagoda_operator", "pagoda_sizing"}),
    ("pagoda_fetch.core.listing", TORCH | CLUSTER | HTTP | {"obstore", "huggingface_hub", "httpx2"}),
    ("pagoda_sizing.plan", TORCH | CLUSTER | HTTP | {"numpy", "typer", "rich", "pagoda_cli"}),
    ("pagoda_sizing.tables", TORCH | CLUSTER | HTTP | {"numpy", "typer", "rich", "pagoda_cli"}),
    ("pagoda_placement.place", TORCH | CLUSTER | HTTP | {"numpy", "typer", "rich", "pagoda_cli"}),
    ("pagoda_cli.__main__", TORCH | CLUSTER | HTTP | {"typer", "rich", "pagoda_daemon", "pagoda_operator", "pagoda_gateway"}),
    ("pagoda_cli.commands", TORCH | CLUSTER | HTTP | {"pagoda_daemon", "pagoda_operator", "pagoda_gateway", "pagoda_devcluster"}),
    ("pagoda_contracts.crds.validation", TORCH | CLUSTER | HTTP | {"yaml"}),
    ("pagoda_contracts.launch", TORCH | CLUSTER | HTTP),
    ("pagoda_contracts.resources.service", TORCH | CLUSTER | HTTP),
]


def groups():
    """Modules that do without the same packages open in one process: what is forbidden stays so, whoever comes first."""
    found = {}
    for module, forbidden in CASES:
        found.setdefault(frozenset(forbidden), []).append(module)
    return [(modules, set(forbidden)) for forbidden, modules in found.items()]


@pytest.mark.deep
@pytest.mark.parametrize(("modules", "forbidden"), groups(), ids=[" ".join(modules) for modules, _ in groups()])
def test_entry_point_imports_without(modules, forbidden):
    done = opened(modules, forbidden)
    assert done.returncode == 0, done.stderr[-2000:]


def test_guard_sees_a_forbidden_import():
    done = opened(("json", "numpy"), {"numpy"})
    assert done.returncode != 0
    assert "ModuleNotFoundError: numpy" in done.stderr


def contract(name):
    """An import contract, by the beginning of its name."""
    (found,) = [one for one in linter()["contracts"] if one["name"].startswith(name)]
    return found


def linter():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]


def test_every_module_that_calls_itself_pure_is_held_to_it():
    """A package's contract holds for its modules too. So a deciding module that is new is held from its first line on."""
    contracts = [contract(name) for name in ("What the operator decides", "Placement is pure")]
    held = [module for one in contracts for module in one["source_modules"]]
    assert all({"time", "random", "asyncio", "socket", "kubernetes"} <= set(one["forbidden_modules"]) for one in contracts)
    names = [name for component in ("operator", "placement") for name in pure(ROOT / component)]
    assert len(names) > 40
    assert [name for name in names if not any(f"{name}.".startswith(f"{module}.") for module in held)] == []


def pure(tree):
    """The modules whose docstring says that they are."""
    paths = [path for path in tree.rglob("*.py") if re.search(r"\bPure\b", ast.get_docstring(ast.parse(path.read_text())) or "")]
    return [".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__") for path in paths]
