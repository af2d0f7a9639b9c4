"""The processes of bench/gateway.py: what is measured, and the gateway with its keys, its quota and its log."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else it complains of each child
import aiohttp
import grpc
import grpc.aio
from gateway_load import Target
from gateway_sides import MODEL
from pagoda_contracts.names import GRPC_WATCH_DEMAND
from pagoda_contracts.pb.demand_pb2 import Demand, WatchDemandRequest
from pagoda_contracts.resources.apikeys import new_key

SIDES: Final = str(Path(__file__).parent / "gateway_sides.py")


@dataclass(frozen=True)
class Side:
    """A process that is measured."""

    target: Target
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@asynccontextmanager
async def child(*argv: str, log: Path, tree: str = "") -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """A process, and its first line of JSON, which says where it listens. Its lines pass through a pipe, as those of a container do.
    `tree`: a checkout whose packages it imports instead of these."""
    path = {"PYTHONPATH": os.pathsep.join(f"{tree}/{name}" for name in ("gateway", "contracts", "kube"))} if tree else {}
    reading, writing = os.pipe()
    with log.open("wb") as out:
        reader = await asyncio.create_subprocess_exec("cat", stdin=reading, stdout=out)
        process = await asyncio.create_subprocess_exec(sys.executable, "-P", *argv, stdout=writing, env=os.environ | path)
    os.close(reading)
    os.close(writing)
    try:
        yield process, await _first_line(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reader.wait()


async def _first_line(process: asyncio.subprocess.Process, log: Path) -> dict[str, Any]:
    while b"\n" not in (said := log.read_bytes()):  # noqa: ASYNC240  a small file in memory
        if process.returncode is not None:
            raise RuntimeError(f"it ended with {process.returncode}")
        await asyncio.sleep(0.05)
    line: dict[str, Any] = json.loads(said.partition(b"\n")[0])
    return line


class Gateway:
    """`pagoda-gateway` in front of a file of replicas, with a key and a quota of one tenant. It is scraped and its demand is watched."""

    def __init__(self, folder: Path, endpoints: Sequence[dict[str, str]]) -> None:
        self.folder, self.picks = folder, folder / "picks.json"
        key = new_key(secrets.token_bytes(32), datetime.now(UTC))
        self.key = key.text
        (folder / "fleet.json").write_text(
            json.dumps({"services": [{"name": "bench/bench", "served_names": [MODEL], "endpoints": list(endpoints)}]})
        )
        (folder / "keys.json").write_text(json.dumps({"bench": {key.id: json.loads(key.stored.document())}}))
        limits = [{"window": "1m", "requests": 10**8, "tokens": 10**11}, {"window": "24h", "tokens": 10**12}]
        subjects = {"apiKeysSecretRef": {"namespace": "bench", "name": "pagoda-keys-bench"}}
        spec = {"subjects": subjects, "limits": limits, "maxConcurrency": 10_000}
        (folder / "quotas.json").write_text(json.dumps({"quotas": [{"metadata": {"name": "bench"}, "spec": spec}]}))

    def options(self, http: int = 0) -> list[str]:
        """Its command line. Ports are of the kernel's choice, but for `http` if it is given."""
        files = {one: str(self.folder / f"{one}.json") for one in ("fleet", "keys", "quotas")}
        ports = {"http-port": str(http)} | {f"{one}-port": "0" for one in ("metrics", "probes", "demand")}
        return [word for one, value in (files | ports).items() for word in (f"--{one}", value)] + ["--host", "127.0.0.1"]

    @asynccontextmanager
    async def running(self, name: str = "gateway", *, tree: str = "", timed: bool = False) -> AsyncIterator[Side]:
        """Yields it when it listens. `timed`: its picks are timed, and are in `picks` when it has ended."""
        options = [*self.options(), "--lame-duck", "0s", "--hold-limit", "10000"]
        program = [SIDES, "gateway", str(self.picks), "--"] if timed else ["-m", "pagoda_gateway"]
        async with child(*program, *options, log=self.folder / f"{name}.log", tree=tree) as (process, said):
            async with self._used(said):
                yield Side(Target(name, "127.0.0.1", said["http"], self.key), process.pid)
            process.terminate()
            await process.wait()

    @asynccontextmanager
    async def _used(self, said: dict[str, Any]) -> AsyncIterator[None]:
        """As an operator and a Prometheus would."""
        tasks = [asyncio.create_task(_watch_demand(said["demand"])), asyncio.create_task(_scrape(said["metrics"]))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _watch_demand(port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch = channel.unary_stream(
            GRPC_WATCH_DEMAND, request_serializer=WatchDemandRequest.SerializeToString, response_deserializer=Demand.FromString
        )
        async for _ in watch(WatchDemandRequest(watcher="operator/bench")):
            pass


async def _scrape(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                await answer.read()
            await asyncio.sleep(5)
