"""gRPC streams that last: a stream that breaks or falls silent is opened again, until its task is cancelled.

Operator and gateway read replicas' states and gateways' demand so. Every sender sends a frame every 500 ms, so silence is a fault.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

import grpc
import grpc.aio
import structlog

log = structlog.get_logger()

Message = TypeVar("Message")
# gRPC reconnects fast, because a starting pod refuses for a while. Each channel has connections of its own, and no proxy.
_CHANNEL: Final = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),  # a full frame of 5,000 replicas has 0.5 MB
]
_BACKOFF_S: Final = (0.05, 2.0)
# A new process behind a name is found after this long at the latest; CoreDNS keeps an answer for 5 s.
_RESOLVE_S: Final = 2.0


class Stream(NamedTuple, Generic[Message]):
    """What to call. `metadata` is asked at each call, since a token is renewed. `silent_s`: after so long without a message the connection
    counts as dead."""

    address: str
    method: str
    request: Any
    parse: Callable[[bytes], Message]
    metadata: Callable[[], Iterable[tuple[str, str]]]
    silent_s: float


async def read_forever(stream: Stream[Message], take: Callable[[Message], None], broke: Callable[[str], None]) -> NoReturn:
    """Gives each message to `take`, and says by `broke` why a stream ended before it opens the next one. Backs off with jitter."""
    pause = _BACKOFF_S[0]
    async with grpc.aio.insecure_channel(stream.address, options=_CHANNEL) as channel:
        call = channel.unary_stream(stream.method, lambda request: request.SerializeToString(), stream.parse)
        while True:
            why = "ended by the sender"
            try:
                async for message in _until_silent(
                    call(stream.request, wait_for_ready=True, metadata=tuple(stream.metadata())), stream.silent_s
                ):
                    take(message)
                    pause = _BACKOFF_S[0]
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name}: {error.details()}"
            except TimeoutError:
                why = f"silent for {stream.silent_s:g} s"
            except Exception:  # without this the task would end, and the stream would never be opened again
                log.exception("reading a stream failed by an error of ours", address=stream.address, method=stream.method)
                why = "an error of the reader"
            broke(why)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            pause = min(2 * pause, _BACKOFF_S[1])


class OnePerAddress:
    """Keeps one task for each address that a few names have, as DNS answers now (a headless Service has one address per pod). `read`
    makes the task of an address; `gone` hears of one that the names do not have any more."""

    def __init__(self, names: Iterable[str], read: Callable[[str], Coroutine[Any, Any, None]], gone: Callable[[str], None]) -> None:
        self._names, self._read, self._gone = tuple(names), read, gone
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    self._sync(await resolve(self._names))
                except OSError as error:
                    log.info("names were not resolved", names=self._names, error=str(error))
                await asyncio.sleep(_RESOLVE_S)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _sync(self, found: set[str]) -> None:
        for address in self._tasks.keys() - found:
            self._tasks.pop(address).cancel()
            self._gone(address)
        for address in found - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._read(address), name=f"stream {address}")


async def _until_silent(call: Any, silent_s: float) -> AsyncIterator[Any]:
    """Yields messages as they come; TimeoutError after too long a silence. The call is cancelled in any case."""
    try:
        while True:
            async with asyncio.timeout(silent_s):
                message = await call.read()
            if message is grpc.aio.EOF:
                return
            yield message
    finally:
        call.cancel()


async def resolve(names: Iterable[str]) -> set[str]:
    """Returns every address of every host:port. A name may have none: no such process runs. OSError if the resolver fails."""
    found: set[str] = set()
    for name in names:
        host, _, port = name.rpartition(":")
        try:
            answers = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno not in (socket.EAI_NONAME, socket.EAI_NODATA):
                raise
            continue
        found |= {f"[{address[0]}]:{port}" if ":" in str(address[0]) else f"{address[0]}:{port}" for *_, address in answers}
    return found
