"""Each extra alone in a clean environment: what it declares is all that its command needs.

Packages come from uv's cache if it has them. Versions are those of requirements/dev.txt. Torch alone unpacks to gigabytes: uv
links files from its cache where the disk allows it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.extras, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).parent / "uv"
ENTRY_POINTS = {
    "daemon": ("pagoda-daemon", "pagoda_daemon.__main__", "pagoda_daemon.api"),
    "bench": ("pagoda-daemon", "pagoda_daemon.__main__", "pagoda_daemon.bench.command"),
    "operator": ("pagoda-operator", "pagoda_operator.__main__", "pagoda_operator.serve.process"),
    "gateway": ("pagoda-gateway", "pagoda_gateway.__main__", "pagoda_gateway.serve.process"),
    "fetch": ("pagoda-fetch", "pagoda_fetch.__main__", "pagoda_fetch.serve.sidecar"),
    "cli": ("pagoda", "pagoda_cli.__main__", "pagoda_cli.commands"),
}
# Enough of a command line to pass the settings, which need no extra.
ARGUMENTS = {
    "daemon": ["serve", "."],
    "bench": ["bench", "serve"],
    "operator": [],
    "gateway": ["--anonymous", "true"],
    "fetch": ["inspect", "pvc://x"],
    "cli": ["plan"],
}
COMMAND = {"bench": ("bench",)}
STRANGERS = {
    "daemon": {"kubernetes", "kopf", "typer", "transformers"},
    "bench": {"torch", "zmq", "starlette", "grpc", "kubernetes"},
    "operator": {"torch", "typer", "starlette"},
    "gateway": {"torch", "kopf", "typer"},
    "fetch": {"torch", "kubernetes", "kopf", "starlette", "aiohttp"},
    "cli": {"torch", "kubernetes", "kopf", "starlette", "grpc"},
}


def run(*argv, **options):
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What users install: the wheel, not the checkout."""
    out = tmp_path_factory.mktemp("wheel")
    run(UV, "build", "--wheel", "--offline", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def constraints(tmp_path_factory):
    """The lock's versions without its hashes: a wheel built here has none."""
    lines = (ROOT / "requirements/dev.txt").read_text().splitlines()
    pins = [line.removesuffix("\\").strip() for line in lines if line and line[0].isalnum()]
    path = tmp_path_factory.mktemp("constraints") / "pins.txt"
    path.write_text("\n".join(pins) + "\n")
    return path


def installed(folder, wheel, constraints, extra=""):
    """The environment's Python; offline first, with the registry where the cache lacks a package."""
    run(UV, "venv", "--quiet", "--offline", "--python", sys.executable, folder)
    python = folder / "bin/python"
    what = f"pagoda{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"
    install = [str(UV), "pip", "install", "--quiet", "--python", str(python), "-c", str(constraints), what]
    if subprocess.run([*install, "--offline"], capture_output=True, check=False).returncode:
        run(*install)
    return python


@pytest.mark.parametrize("extra", ENTRY_POINTS)
def test_an_extra_alone_is_enough_for_its_command(extra, wheel, constraints, tmp_path):
    python = installed(tmp_path / "env", wheel, constraints, extra)
    script, *modules = ENTRY_POINTS[extra]
    for module in modules:
        run(python, "-P", "-W", "error::ImportWarning", "-c", f"import {module}", cwd=tmp_path)
    assert "usage" in run(python.parent / script, *COMMAND.get(extra, ()), "--help", cwd=tmp_path).lower()
    found = run(python, "-P", "-c", f"import importlib.util as u; print([n for n in {sorted(STRANGERS[extra])} if u.find_spec(n)])")
    assert found.strip() == "[]"
    run(UV, "pip", "check", "--python", python)


def test_without_an_extra_contracts_and_sizing_import_and_each_command_names_what_is_missing(wheel, constraints, tmp_path):
    python = installed(tmp_path / "env", wheel, constraints)
    run(python, "-P", "-c", "import pagoda_contracts.crds.validation, pagoda_contracts.pb.demand_pb2, pagoda_sizing.plan", cwd=tmp_path)
    for extra, (script, *_) in ENTRY_POINTS.items():
        done = subprocess.run([str(python.parent / script), *ARGUMENTS[extra]], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode != 0
        assert f"pip install '.[{extra}]'" in done.stderr, f"{script}: {done.stderr[-500:]}"
        assert "Traceback" not in done.stderr
