"""The deciding core, the loop and the simulated worker open where torch is not installed."""

from __future__ import annotations

import pytest
from support.suite.opens import opened

NO_DEVICE = {"torch", "triton", "safetensors", "transformers"}
PURE = NO_DEVICE | {"zmq", "structlog", "starlette", "grpc"}


DECIDING = ("core.batch", "kv.tables", "kv.accounts", "scheduler.plan", "scheduler.commit", "scheduler.admission")
SIMULATED = ("simulated.device.worker", "simulated.device.virtual", "simulated.replay.command")
ENGINE = ("engine.loop", "engine.__main__", "engine.build")


@pytest.mark.deep
@pytest.mark.parametrize(("names", "forbidden"), [(DECIDING + SIMULATED, PURE), (ENGINE, NO_DEVICE)], ids=["deciding", "engine"])
def test_opens_without(names: tuple[str, ...], forbidden: set[str]) -> None:
    done = opened([f"pagoda_daemon.{name}" for name in names], forbidden)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_guard_sees_a_forbidden_import_behind_others() -> None:
    done = opened(("pagoda_daemon.core.batch", "safetensors"), NO_DEVICE)
    assert done.returncode != 0
    assert "ModuleNotFoundError: safetensors" in done.stderr
