"""What bench/gateway.py compares, each as a process of its own: simulated replicas, a bare aiohttp pass-through, and the gateway with its
picks timed. `python -P gateway_sides.py replicas 100`, `… passing HOST:PORT`, `… gateway FILE -- OPTIONS`."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import grpc
import grpc.aio
import uvloop
from aiohttp import web
from pagoda_contracts.names import GRPC_DAEMON, GRPC_WATCH_STATE, HEADER_REPORT_USAGE, HEADER_USAGE
from pagoda_contracts.pb.daemon_pb2 import Phase, State, WatchStateRequest
from pagoda_contracts.usage import Used, to_header

MODEL: Final = "bench"
PATH: Final = "/v1/chat/completions"
EVENTS: Final = 200
PAUSE_S: Final = 2.0
EVENT: Final = b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
DONE: Final = b"data: [DONE]\n\n"
WHOLE: Final = json.dumps({"id": "chatcmpl-0", "choices": [{"message": {"content": "word " * 40}}]}).encode()
_SSE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_ASKS_USAGE: Final = HEADER_REPORT_USAGE.encode() + b":"


class Replica(asyncio.Protocol):
    """One connection to a simulated replica: it parses as a daemon would and answers with almost no work of its own. It counts tokens for
    a caller that asks for it, as a daemon does. A body with `slow` gets an event each 2 s."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        lower = head.lower()
        if not found or self._transport is None:
            return
        if len(body) >= int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0]):
            self._data = b""
            _answer(self._transport, json.loads(body), counts=_ASKS_USAGE in lower)


def _answer(out: asyncio.Transport, asked: dict[str, Any], *, counts: bool) -> None:
    if asked["stream"]:
        asyncio.get_running_loop().create_task(_stream(out, asked, counts=counts))
        return
    usage = f"{HEADER_USAGE}: {to_header(Used(250, 0, 40))}\r\n" if counts else ""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{usage}content-length: {len(WHOLE)}\r\n\r\n"
    out.write(head.encode() + WHOLE)


async def _stream(out: asyncio.Transport, asked: dict[str, Any], *, counts: bool) -> None:
    """One event, one write: as tokens come."""
    out.write(_SSE)
    for number in range(asked.get("events", EVENTS)):
        event = b": pagoda-usage 250 0 %d\n\n" % (number + 1) + EVENT if counts else EVENT
        out.write(b"%x\r\n%s\r\n" % (len(event), event))
        await asyncio.sleep(PAUSE_S if asked.get("slow") else 0)
        if out.is_closing():
            return
    out.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE))


async def _frames(_request: WatchStateRequest, _context: Any) -> AsyncIterator[State]:
    """The pushed state of a replica: always ready."""
    sequence = 0
    while True:
        sequence += 1
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        yield State(sequence=sequence, sent_at_ms=now_ms, phase=Phase.PHASE_READY, served_names=[MODEL], blocks_total=1000)
        await asyncio.sleep(0.5)


async def replicas(count: int) -> None:
    """Runs until killed; prints their addresses. Each has an address of its own on the loopback."""
    method = grpc.unary_stream_rpc_method_handler(
        _frames, request_deserializer=WatchStateRequest.FromString, response_serializer=State.SerializeToString
    )
    name = GRPC_WATCH_STATE.rsplit("/", 1)[1]
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_DAEMON, {name: method}),))
    addresses = []
    for number in range(1, count + 1):
        host = f"127.0.1.{number}"
        listener = await asyncio.get_running_loop().create_server(Replica, host, 0, backlog=4096)
        http = f"{host}:{listener.sockets[0].getsockname()[1]}"
        addresses.append({"http": http, "grpc": f"{host}:{server.add_insecure_port(f'{host}:0')}"})
    await server.start()
    print(json.dumps({"endpoints": addresses}), flush=True)
    await asyncio.Event().wait()


async def passing(address: str) -> None:
    """A bare aiohttp pass-through to one replica; runs until killed and prints where it listens."""
    keep = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=keep, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as session:

        async def passed(request: web.Request) -> web.StreamResponse:
            body, headers = await request.read(), {"content-type": request.headers["content-type"]}
            async with session.post(f"http://{address}{request.path}", data=body, headers=headers) as answer:
                if answer.content_type != "text/event-stream":
                    return web.Response(body=await answer.read(), content_type=answer.content_type)
                out = web.StreamResponse(headers={"content-type": "text/event-stream"})
                await out.prepare(request)
                while chunk := await answer.content.readany():
                    await out.write(chunk)
                return out

        app = web.Application()
        app.add_routes([web.post(PATH, passed)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        print(json.dumps({"http": runner.addresses[0][1]}), flush=True)
        await asyncio.Event().wait()


def gateway(report: Path, options: list[str]) -> None:
    """The gateway itself, whose picks are timed by the clock and by the CPU. Writes both lists, in ms, when it ends."""
    from pagoda_gateway import __main__ as program
    from pagoda_gateway.requests.router import Router

    walls: list[float] = []
    cpus: list[float] = []
    choose: Callable[..., Any] = Router._choose  # noqa: SLF001

    def timed(router: Router, life: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return choose(router, life)
        finally:
            walls.append((time.perf_counter() - wall) * 1000)
            cpus.append((time.thread_time() - cpu) * 1000)

    Router._choose = timed  # type: ignore[method-assign]  # noqa: SLF001
    try:
        program.main(options)
    finally:
        report.write_text(json.dumps({"wall_ms": walls, "cpu_ms": cpus}))


def main() -> None:
    """Runs one of them."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    what, first = sys.argv[1:3]
    if what == "gateway":
        gateway(Path(first), sys.argv[4:])
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(replicas(int(first)) if what == "replicas" else passing(first))


if __name__ == "__main__":
    main()
