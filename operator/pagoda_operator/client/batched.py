"""Quorum reads of many runs in few requests. A `Reader` between `reconcile` and the cluster; which asks go together says joining.py.

A run reads all kinds of children by its service's name, and an API server answers a consistent list of a quiet kind only at its next look
at etcd, up to 100 ms later. So one list answers all who asked before it began, and of each kind four are under way at most: requests per
second depend on that time, not on how many runs are at work. A list goes over all namespaces only for names that are known to be in one
alone: what it brings is what was asked for. No `limit`: until Kubernetes 1.34 it sends the server past its cache, to read the whole kind
from etcd.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from pagoda_contracts.names import LABEL_SERVICE

from pagoda_operator.api.reader import Reader
from pagoda_operator.api.state import PROFILES, Json, Key, Resource
from pagoda_operator.client.joining import Batch, Line
from pagoda_operator.client.tally import for_many, waiting

# Names are 63 characters at most: the longest address has 4 KB.
_MOST: Final = 64
_AT_ONCE: Final = 4
_EVERYWHERE: Final = ""

T = TypeVar("T")
Read = Callable[[Batch], Awaitable[Mapping[Key, T]]]
Bodies = list[Json]


def unknown(_: Key) -> bool:
    """Stand-in: nothing is known of any name."""
    return False


class Batched:
    """Lists by a service's name and profiles are joined; all else is read as it is asked. `alone`: whether it is known that no other
    namespace has anything of that name. Teams call their service "chat": 2,000 of them would be the whole fleet in each list."""

    def __init__(self, source: Reader, alone: Callable[[Key], bool] = unknown) -> None:
        self._source = source
        self._alone = alone
        self._lists: dict[Resource, _Desk[Bodies]] = {}
        self._profiles: _Desk[Json | None] = _Desk(self._profile, Line(lambda key: key.name, _MOST, _AT_ONCE))

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object, None where there is none; many services share a profile."""
        if resource == PROFILES:
            return await self._profiles.ask(Key(namespace, name))
        return await self._source.get(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str, selector: str) -> Sequence[Json]:
        """The objects with these labels."""
        label, _, name = selector.partition("=")
        if label != LABEL_SERVICE or not namespace:
            return await self._source.list(resource, namespace, selector)
        return await self._desk(resource).ask(Key(namespace, name))

    def _desk(self, resource: Resource) -> _Desk[Bodies]:
        if (desk := self._lists.get(resource)) is None:
            desk = self._lists[resource] = _Desk(lambda batch: self._children(resource, batch), Line(self._group, _MOST, _AT_ONCE))
        return desk

    def _group(self, key: Key) -> str:
        return _EVERYWHERE if self._alone(key) else key.namespace

    async def _profile(self, batch: Batch) -> Mapping[Key, Json | None]:
        return {key: await self._source.get(PROFILES, *key) for key in batch.keys}

    async def _children(self, resource: Resource, batch: Batch) -> Mapping[Key, Bodies]:
        namespaces, names = {key.namespace for key in batch.keys}, sorted({key.name for key in batch.keys})
        namespace = namespaces.pop() if len(namespaces) == 1 else ""
        selector = f"{LABEL_SERVICE}={names[0]}" if len(names) == 1 else f"{LABEL_SERVICE} in ({','.join(names)})"
        found: dict[Key, Bodies] = {key: [] for key in batch.keys}
        for item in await self._source.list(resource, namespace, selector):
            meta = item["metadata"]
            key = Key(meta["namespace"], meta["labels"][LABEL_SERVICE])
            if key in found:
                found[key].append(item)
        return found


class _Desk(Generic[T]):
    """A line, who waits in it, and the requests for them: in tasks of their own, so that a run's end ends no other's wait."""

    def __init__(self, read: Read[T], line: Line) -> None:
        self._read = read
        self._line = line
        self._waiters: dict[int, asyncio.Future[T]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def ask(self, key: Key) -> T:
        """What a request that begins after this call found of it; its error, where it failed."""
        ticket = self._line.ask(key)
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiters[ticket] = waiter
        self._attend()
        try:
            with waiting():
                return await waiter
        finally:
            self._line.withdraw(ticket)
            del self._waiters[ticket]

    def _attend(self) -> None:
        with for_many():
            task = asyncio.create_task(self._serve())  # at the loop's next turn: who asks in this one is in the same request
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self) -> None:
        """One request. Who waits for the next does not wait until all of this one's are told: with 20 changes a second on a busy machine
        that was as long as the request itself."""
        if (batch := self._line.begin()) is None:
            return
        try:
            found = await self._read(batch)
        except Exception as error:  # noqa: BLE001 (whose it is says who asked)
            self._after(batch)
            self._fail(batch, error)
        except asyncio.CancelledError:
            self._line.end(batch)
            raise
        else:
            self._after(batch)
            await self._answer(batch, found)

    def _after(self, batch: Batch) -> None:
        self._line.end(batch)
        self._attend()

    async def _answer(self, batch: Batch, found: Mapping[Key, T]) -> None:
        """One at a turn of the loop: 32 runs that went on in the same one would plan for half a second, and probes and watches wait."""
        for ticket, key in batch.asks.items():
            if (waiter := self._waiters.get(ticket)) is not None and not waiter.done():
                waiter.set_result(found[key])
                await asyncio.sleep(0)

    def _fail(self, batch: Batch, error: Exception) -> None:
        for ticket in batch.asks:
            if (waiter := self._waiters.get(ticket)) is not None and not waiter.done():
                waiter.set_exception(error)
