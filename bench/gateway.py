"""The gateway's own cost: the same load straight to a simulated upstream and through the gateway, alternating A B A B. Prints JSON.

`python -P bench/gateway.py [--seconds 4]`. Upstream, gateway and load generator are one process each and share the machine's cores:
trust the ratios. One upstream answer without stream is ~300 bytes for a ~1 KB chat; a stream has 200 events.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import grpc
import grpc.aio
import uvloop
from aiohttp import web
from pagoda_contracts.names import GRPC_DAEMON, GRPC_WATCH_STATE
from pagoda_contracts.pb.daemon_pb2 import Phase, State, WatchStateRequest

MODEL: Final = "bench"
EVENTS: Final = 200
CONNECTIONS: Final = {"whole": 32, "stream": 64}
EVENT: Final = b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
WHOLE: Final = json.dumps({"id": "chatcmpl-0", "choices": [{"message": {"content": "word " * 40}}]}).encode()
PATH: Final = "/v1/chat/completions"


async def answer(request: web.Request) -> web.StreamResponse:
    """The simulated upstream: parses, as a daemon would, and says its piece."""
    if not (await request.json())["stream"]:
        return web.Response(body=WHOLE, content_type="application/json")
    out = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await out.prepare(request)
    for _ in range(EVENTS):
        await out.write(EVENT)
        await asyncio.sleep(0)  # one event, one write: as tokens come
    await out.write(b"data: [DONE]\n\n")
    return out


async def frames(_request: WatchStateRequest, _context: Any) -> AsyncIterator[State]:
    """Its pushed state: always ready."""
    sequence = 0
    while True:
        sequence += 1
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        yield State(sequence=sequence, sent_at_ms=now_ms, phase=Phase.PHASE_READY, served_names=[MODEL])
        await asyncio.sleep(0.5)


async def upstream() -> None:
    """Runs until killed; prints its addresses."""
    app = web.Application()
    app.add_routes([web.post(PATH, answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = grpc.aio.server()
    method = grpc.unary_stream_rpc_method_handler(
        frames, request_deserializer=WatchStateRequest.FromString, response_serializer=State.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_DAEMON, {GRPC_WATCH_STATE.rsplit("/", 1)[1]: method}),))
    state = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"http": f"127.0.0.1:{runner.addresses[0][1]}", "grpc": f"127.0.0.1:{state}"}), flush=True)
    await asyncio.Event().wait()


async def load(url: str, kind: str, seconds: float) -> float:
    """Requests a second, or chunks a second, by as many connections as `CONNECTIONS` says, one request after another on each."""
    body = json.dumps({"model": MODEL, "stream": kind == "stream", "messages": [{"role": "user", "content": "x" * 1000}]}).encode()
    loop = asyncio.get_running_loop()
    done, begin = 0, loop.time()

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal done
        while loop.time() - begin < seconds:
            async with session.post(url + PATH, data=body, headers={"content-type": "application/json"}) as got:
                content = await got.read()
                if got.status != 200:
                    raise RuntimeError(f"{got.status}: {content[:200]!r}")
                done += content.count(b"\n\n") if kind == "stream" else 1

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(CONNECTIONS[kind])))
    return done / (loop.time() - begin)


@asynccontextmanager
async def child(*argv: str) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """A process that says in one line where it listens; its pid too."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-P", *argv, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe")
        yield process.pid, json.loads(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(seconds: float) -> dict[str, Any]:
    """Direct and through the gateway, twice each, for both kinds."""
    out: dict[str, Any] = {"seconds_each": seconds, "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as scratch:
        fleet = Path(scratch) / "fleet.json"
        ports = ["--http-port", "0", "--metrics-port", "0", "--probes-port", "0", "--host", "127.0.0.1"]
        async with child(__file__, "--upstream") as (_, address):
            fleet.write_text(json.dumps({"services": [{"name": "bench/bench", "served_names": [MODEL], "endpoints": [address]}]}))
            async with child("-m", "pagoda_gateway", "--fleet", str(fleet), *ports) as (pid, listening):
                urls = {"direct": f"http://{address['http']}", "gateway": f"http://127.0.0.1:{listening['http']}"}
                for kind in CONNECTIONS:
                    out[kind] = await compare(urls, kind, seconds, pid)
    return out


async def compare(urls: dict[str, str], kind: str, seconds: float, gateway: int) -> dict[str, Any]:
    """A B A B, and what the gateway's CPU did per request or chunk."""
    rates: dict[str, list[int]] = {name: [] for name in urls}
    spent = 0.0
    for _ in range(2):
        for name, url in urls.items():
            before = cpu_seconds(gateway)
            rates[name].append(round(await load(url, kind, seconds)))
            spent += cpu_seconds(gateway) - before if name == "gateway" else 0.0
    per_core = sum(rates["gateway"]) * seconds / spent
    return {f"{name}_per_s": rate for name, rate in rates.items()} | {"gateway_per_cpu_s": round(per_core)}


def main() -> None:
    """Door."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--upstream", action="store_true", help="be the simulated upstream")
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if chosen.upstream:
            runner.run(upstream())
        else:
            print(json.dumps(runner.run(measure(chosen.seconds)), indent=1))


if __name__ == "__main__":
    main()
