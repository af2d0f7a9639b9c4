"""gRPC `pagoda.v1.Fetch` on the pod's loopback: an order in, its progress out. Equal orders join the fetch under way.

The caller is the daemon of the same pod: no other process reaches the address. A caller who leaves does not stop the fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import structlog
from pagoda_contracts.names import GRPC_FETCH
from pagoda_contracts.pb.fetch_pb2 import (
    FETCH_PHASE_DONE,
    FETCH_PHASE_FAILED,
    FETCH_PHASE_FETCHING,
    FETCH_PHASE_RESOLVING,
    FETCH_PHASE_VERIFYING,
    FetchPhase,
    FetchProgress,
    FetchRequest,
)

from pagoda_fetch.core.address import check_digest, parse
from pagoda_fetch.core.errors import FetchError, Transient, Unreachable
from pagoda_fetch.core.progress import Phase, Progress
from pagoda_fetch.download.job import Order, fetch
from pagoda_fetch.sources.choose import Surroundings
from pagoda_fetch.volume.lock import Holder
from pagoda_fetch.volume.store import Store

log = structlog.get_logger()
_MAX_JOBS: Final = 32
_MAX_CALLS: Final = 256
_MAX_MESSAGE: Final = 64 * 1024
# A message at most this often: a gigabyte a second would be a thousand.
_FLOOR: Final = 0.2
_PHASES: Final[dict[Phase, FetchPhase]] = {
    "resolving": FETCH_PHASE_RESOLVING,
    "waiting": FETCH_PHASE_RESOLVING,
    "fetching": FETCH_PHASE_FETCHING,
    "verifying": FETCH_PHASE_VERIFYING,
    "done": FETCH_PHASE_DONE,
    "failed": FETCH_PHASE_FAILED,
}


class Context(Protocol):
    """What is used of grpc.aio's ServicerContext, which has no types."""

    async def write(self, message: FetchProgress) -> None: ...


@dataclass
class _Job:
    """A fetch under way: its last progress, and the callers that wait for the next."""

    latest: Progress = field(default_factory=lambda: Progress("resolving"))
    error: FetchError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self, progress: Progress) -> None:
        self.latest = progress
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    @property
    def over(self) -> bool:
        return self.error is not None or self.latest.phase == "done"


class Fetches:
    """All fetches of this process."""

    def __init__(self, store: Store, around: Surroundings, me: Holder) -> None:
        self._store, self._around, self._me = store, around, me
        self._jobs: dict[Order, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def watch(self, order: Order) -> AsyncGenerator[Progress]:
        """The fetch's progress from now on; raises what ends it."""
        job = self._jobs.get(order) or self._begin(order)
        while not job.over:
            changed = job.changed
            yield job.latest
            await changed.wait()
        if job.error is not None:
            raise job.error
        yield job.latest

    async def result(self, order: Order) -> Progress:
        """The finished fetch."""
        last = Progress("resolving")
        async for progress in self.watch(order):
            last = progress
        return last

    def _begin(self, order: Order) -> _Job:
        if len(self._jobs) >= _MAX_JOBS:
            raise Unreachable(f"{_MAX_JOBS} fetches are under way; ask again")
        job = self._jobs[order] = _Job()
        task = asyncio.create_task(self._run(order, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return job

    async def _run(self, order: Order, job: _Job) -> None:
        try:
            await fetch(order, self._store, self._around, self._me, job.report)
        except FetchError as error:
            job.error = error
        except Exception as error:  # a bug ends one fetch, and says so
            log.exception("fetch_bug", uri=order.address.uri)
            job.error = Unreachable(f"internal error: {type(error).__name__}")
        finally:
            self._jobs.pop(order, None)
            job.wake()

    async def stop(self) -> None:
        """Ends what is under way; what was fetched stays for the next time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def answer(fetches: Fetches, request: FetchRequest, context: Context) -> None:
    """One call: at most five messages a second, the last one DONE or FAILED."""
    try:
        order = Order(parse(request.uri, request.revision), check_digest(request.digest), request.credential)
        async for progress in fetches.watch(order):
            await context.write(message(progress))
            if progress.phase != "done":
                await asyncio.sleep(_FLOOR)
    except FetchError as error:
        size_text = f"{error.reason}: {error}"
        await context.write(FetchProgress(phase=FETCH_PHASE_FAILED, error=size_text, retryable=isinstance(error, Transient)))


def message(progress: Progress) -> FetchProgress:
    """On the wire."""
    phase, done, total, digest, path = progress
    return FetchProgress(phase=_PHASES[phase], bytes_done=max(0, done), bytes_total=total, digest=digest, path=path)


async def listen(fetches: Fetches, port: int) -> tuple[Any, int]:
    """The server and its port. Loopback only: the pod's network is the pod's."""
    options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MAX_MESSAGE))
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS)

    async def serve(request: FetchRequest, context: Context) -> None:
        await answer(fetches, request, context)

    handler = grpc.unary_stream_rpc_method_handler(
        serve, request_deserializer=FetchRequest.FromString, response_serializer=FetchProgress.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(GRPC_FETCH, {"Fetch": handler}),))
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        raise Unreachable(f"port {port} on loopback: {error}") from None
    await server.start()
    return server, bound
