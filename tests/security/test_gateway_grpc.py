"""The gateway's gRPC ports under clients that open streams and reset each at once: neighbours are served, and memory does not grow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import grpc.aio
import pytest
from pagoda_contracts.names import GRPC_EXT_PROC_PROCESS, GRPC_WATCH_DEMAND
from pagoda_contracts.pb.demand_pb2 import Demand, WatchDemandRequest
from support.clients.rapid_reset import rapid_resets
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet

pytestmark = pytest.mark.deep

STREAMS = 2_000
ROUNDS = 12
CONNECTIONS = 4


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    write_fleet(tmp_path / "fleet.json", [{"name": "ns/s", "served_names": ["m"], "endpoints": []}])
    (tmp_path / "secret").write_text("a secret of the tests")
    with start_gateway(
        "--fleet", str(tmp_path / "fleet.json"), "--ext-proc-port", "0", "--ext-proc-secret", str(tmp_path / "secret")
    ) as process:
        yield process


@pytest.mark.parametrize("method", [GRPC_WATCH_DEMAND, GRPC_EXT_PROC_PROCESS], ids=["demand", "ext_proc"])
async def test_streams_that_are_reset_at_once_harm_nobody(gateway: GatewayProcess, method: str) -> None:
    port, sent, before = gateway.demand if method == GRPC_WATCH_DEMAND else gateway.ext_proc, 0, 0
    assert port is not None
    async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.demand}") as channel, aiohttp.ClientSession() as client:
        watch = channel.unary_stream(
            GRPC_WATCH_DEMAND, request_serializer=WatchDemandRequest.SerializeToString, response_deserializer=Demand.FromString
        )(WatchDemandRequest(watcher="neighbour"), timeout=600)
        for round_ in range(ROUNDS):
            resets = [asyncio.create_task(rapid_resets(port, method, STREAMS, batch=1 + 31 * (round_ % 2))) for _ in range(CONNECTIONS)]
            while not all(task.done() for task in resets):
                assert (await watch.read()).gateway
                async with client.get(f"{gateway.url}/v1/models") as answer:
                    assert [card["id"] for card in (await answer.json())["data"]] == ["m"]
            sent += sum(task.result() for task in resets)
            if round_ == ROUNDS // 2 - 1:  # the allocator keeps what the first rounds needed
                before = _resident(gateway)
        frame = await watch.read()
        watch.cancel()
    assert sent > CONNECTIONS * ROUNDS
    assert frame.sequence > 0
    # Two thirds of a KiB for each stream of the second half.
    assert _resident(gateway) - before < 32 * 1024
    assert gateway.process.poll() is None


def _resident(gateway: GatewayProcess) -> int:
    """KiB."""
    lines = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
