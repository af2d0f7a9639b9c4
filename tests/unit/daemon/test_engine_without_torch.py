"""The deciding core, the loop and the simulated worker open where torch is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

GUARD = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import {module}
"""
NO_DEVICE = {"torch", "triton", "safetensors", "transformers"}
PURE = NO_DEVICE | {"zmq", "structlog", "starlette", "grpc"}


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        *(
            (f"pagoda_daemon.{name}", PURE)
            for name in ("batch", "kv.tables", "kv.accounts", "scheduler.plan", "scheduler.commit", "scheduler.admission")
        ),
        ("pagoda_daemon.runner.simulated", PURE),
        ("pagoda_daemon.runner.virtual", PURE),
        ("pagoda_daemon.simulate.__main__", PURE),
        ("pagoda_daemon.engine.loop", NO_DEVICE),
        ("pagoda_daemon.engine.__main__", NO_DEVICE),
        ("pagoda_daemon.runner.build", NO_DEVICE),
    ],
)
def test_opens_without(module: str, forbidden: set[str]) -> None:
    subprocess.run([sys.executable, "-P", "-c", GUARD.format(module=module, forbidden=forbidden)], check=True)
