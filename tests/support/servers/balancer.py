"""A TCP balancer as kube-proxy is one: each new connection goes to the next backend of its list. It knows nothing of HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Balancer:
    """`backends` are ports of this machine; a test changes the list. `given` counts the connections of each, `refused` those that found no
    listener; `of` says which backend the client at a port was given."""

    def __init__(self) -> None:
        self.backends: list[int] = []
        self.given: Counter[int] = Counter()
        self.refused = 0
        self.of: dict[int, int] = {}
        self.port = 0

    async def gives(self, backend: int, more: int) -> None:
        """Returns when this backend got so many more connections."""
        wanted = self.given[backend] + more
        async with asyncio.timeout(120):
            while self.given[backend] < wanted:
                await asyncio.sleep(0.005)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = self.backends[self.given.total() % len(self.backends)]
        self.given[backend] += 1
        self.of[writer.get_extra_info("peername")[1]] = backend
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", backend)
        except ConnectionError:
            self.refused += 1
            writer.transport.abort()
            return
        async with asyncio.TaskGroup() as both:
            both.create_task(_pass(reader, forth))
            both.create_task(_pass(back, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def balancing() -> AsyncIterator[Balancer]:
    """A balancer that listens on a free port."""
    balancer = Balancer()
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    async with server:
        yield balancer
