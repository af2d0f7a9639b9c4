"""Starts and stops of real replicas, front and engine process, stopped in five phases of their lives: none leaves a process, a
socket, a file or shared memory. `make test-ci`."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from pagoda_contracts.names import PATH_READY
from support.clients.outcomes import MixedClients
from support.judges.leftovers import ends_clean, gives_back_all_but, held_by_nobody
from support.servers.replica import NAME, PATIENCE_S, Replica, replica_config, start_daemon

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

LIVES, ALL_LIVES = 3, 10  # in each of the five phases; with --all
BODY = {"model": NAME, "max_tokens": 100, "ignore_eos": True, "temperature": 0}


async def engine_started(replica: Replica) -> None:
    """The engine process exists, and nobody listens yet; the front's loop may not even take signals."""
    children = Path(f"/proc/{replica.process.pid}/task/{replica.process.pid}/children")
    while not children.read_text():  # noqa: ASYNC240  the kernel answers at once
        assert replica.process.poll() is None
        await asyncio.sleep(0.001)


async def loading(replica: Replica) -> None:
    await asyncio.to_thread(replica.wait_listening)


async def idle(replica: Replica) -> None:
    await loading(replica)
    await asyncio.to_thread(replica.wait_ready)


async def busy(replica: Replica, **changes: Any) -> MixedClients:
    await idle(replica)
    clients = MixedClients(replica.http, BODY | changes)
    await clients.streaming()
    return clients


async def stop_at_birth(replica: Replica) -> None:
    await engine_started(replica)
    engine = os.pidfd_open(replica.engine_pid())
    replica.terminate()
    gone = select.poll()
    gone.register(engine, select.POLLIN)
    left_alone = not await asyncio.to_thread(gone.poll, PATIENCE_S * 1000)
    if left_alone:  # it holds the log's pipe, whose end `close` waits for
        signal.pidfd_send_signal(engine, signal.SIGKILL)
    os.close(engine)
    assert not left_alone, "the engine outlived its front"
    await ends_clean(replica)


async def stop_while_loading(replica: Replica) -> None:
    await loading(replica)
    replica.terminate()
    await ends_clean(replica)


async def stop_idle(replica: Replica) -> None:
    await idle(replica)
    replica.terminate()
    await ends_clean(replica)


async def stop_with_streams(replica: Replica) -> None:
    clients = await busy(replica)
    replica.terminate()
    assert [client.error for client in await clients.ended()] == [None] * 4, "they finish within the time to drain"
    await ends_clean(replica)


async def stop_twice(replica: Replica) -> None:
    clients = await busy(replica, max_tokens=10_000)
    replica.terminate()
    while (await asyncio.to_thread(replica.probe, PATH_READY))[0] != 503:
        await asyncio.sleep(0.01)
    replica.terminate()
    assert {client.error for client in await clients.ended()} == {"draining"}
    await ends_clean(replica, 0, 1)  # within our patience, a part of the time to drain; 1 where it took more than two seconds


@pytest.mark.parametrize("stop", [stop_at_birth, stop_while_loading, stop_idle, stop_with_streams, stop_twice])
async def test_starts_and_stops_leave_nothing(
    tmp_path: Path, request: pytest.FixtureRequest, stop: Callable[[Replica], Awaitable[None]]
) -> None:
    before = held_by_nobody()
    for number in range(ALL_LIVES if request.config.getoption("--all") else LIVES):
        config = replica_config(tmp_path, step_ms=5 + number, drain_timeout="10m", engine={"max_model_len": 16_384})
        with start_daemon(config) as replica:
            await stop(replica)
    await gives_back_all_but(before)
