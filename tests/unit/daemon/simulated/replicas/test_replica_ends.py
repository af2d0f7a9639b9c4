"""A simulated replica that is killed while it ends by itself: its address is given away only once nothing listens there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from pagoda_contracts.launch import DaemonConfig, Listen, ModelConfig
from pagoda_daemon.health.replica import ProbeServer
from pagoda_daemon.simulated.replicas.replica import SimulatedReplica, Wanted
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import tiny_model_dir
from support.servers.loopback import own_net

PORTS = Listen(http=18000, grpc=19000, probes=18081)
PATIENCE_S = 300.0


@pytest.fixture
async def replica(tmp_path: Path) -> Any:
    """Ready, on an address that no other test process uses."""
    config = DaemonConfig(model=ModelConfig(path="/nowhere", served_names=("toy",)), listen=PORTS)
    made = SimulatedReplica(Wanted(f"{own_net()}.1", config, 0.0), ModelText(tiny_model_dir(tmp_path)))
    async with asyncio.timeout(PATIENCE_S):
        while not made.ready[0]:
            await asyncio.sleep(0.01)
        yield made
        made.kill()
        await made.wait()


def nobody_listens(address: str) -> None:
    for port in (PORTS.http, PORTS.grpc, PORTS.probes):
        with socket.create_server((address, port)):
            pass


async def killed_while(replica: SimulatedReplica, closing: asyncio.Event, go_on: asyncio.Event | threading.Event) -> None:
    replica.stop()
    await closing.wait()
    replica.kill()
    for _ in range(50):
        await asyncio.sleep(0)
    over = replica.ended
    go_on.set()
    assert not over
    await replica.wait()
    nobody_listens(replica.wanted.address)


@pytest.mark.deep
async def test_it_holds_its_address_while_its_probes_close(replica: SimulatedReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, closing, go_on, close = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), ProbeServer.close

    def held(server: ProbeServer) -> None:
        loop.call_soon_threadsafe(closing.set)
        assert go_on.wait(PATIENCE_S)
        close(server)

    monkeypatch.setattr(ProbeServer, "close", held)
    await killed_while(replica, closing, go_on)


@pytest.mark.deep
async def test_it_closes_its_grpc_port_too(replica: SimulatedReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    closing, go_on, stop = asyncio.Event(), asyncio.Event(), replica._front._grpc.stop

    async def held(grace: float) -> None:
        closing.set()
        await go_on.wait()
        await stop(grace)

    monkeypatch.setattr(replica._front._grpc, "stop", held)
    await killed_while(replica, closing, go_on)


async def test_one_that_is_killed_breaks_a_stream_off_without_a_word(replica: SimulatedReplica) -> None:
    """As the kernel ends a killed process's connections: neither an error event nor the end of the body."""
    reader, writer = await asyncio.open_connection(replica.wanted.address, PORTS.http)
    body = json.dumps({"model": "toy", "prompt": [1, 2, 3], "max_tokens": 4000, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    async with asyncio.timeout(PATIENCE_S):
        await reader.readuntil(b"data: ")
        replica.kill()
        with contextlib.suppress(ConnectionError):
            rest = await reader.read()
            assert b"error" not in rest
            assert not rest.endswith(b"0\r\n\r\n")
    writer.close()
