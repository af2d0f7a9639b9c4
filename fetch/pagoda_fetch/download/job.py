"""One fetch, from address to finished tree: known already → listing → lock → room → files → digest → publish. The route of this component.

Called by `__main__` (`fetch`), the sidecar and the gRPC service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pagoda_fetch.core.address import Address
from pagoda_fetch.core.errors import FetchError, Mismatch, NoRoom, Permanent, Transient
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Listing, RemoteFile, tree_digest
from pagoda_fetch.core.names import WEIGHTS
from pagoda_fetch.core.progress import Phase, Progress
from pagoda_fetch.download.pull import Work, pause, pull
from pagoda_fetch.sources.base import Source
from pagoda_fetch.sources.choose import Surroundings, source
from pagoda_fetch.volume.lock import Holder, OwnedLock, locked
from pagoda_fetch.volume.store import Store, discard, disk_error, staged_bytes
from pagoda_fetch.volume.unpack import TREE, assemble, assembled

log = structlog.get_logger()
# Asked for room again after so many bytes: others write to the volume too.
_ROOM_EVERY = 64 * 2**20


@dataclass(frozen=True)
class Order:
    """What is to be fetched. Equal orders are one fetch."""

    address: Address
    digest: str = ""
    credential: str = ""


@dataclass
class Meter:
    """Counts bytes and reports them."""

    report: Callable[[Progress], None]
    total: int = 0
    done: int = 0
    digest: str = ""

    def moved(self, count: int) -> None:
        """Bytes that are there now, or are no more."""
        self.done += count
        self.say("fetching")

    def say(self, phase: Phase, path: str = "") -> None:
        """Where it stands."""
        self.report(Progress(phase, self.done, self.total, self.digest, path))


@dataclass
class Room:
    """Asks for room before the fetch and on the way."""

    store: Store
    left: int
    since: int = field(default=0)

    def moved(self, count: int) -> None:
        """Bytes of the source that are here."""
        self.left -= count
        self.grew(count)

    def grew(self, count: int) -> None:
        """Bytes on the volume; asks again after every `_ROOM_EVERY` of them."""
        self.since += count
        if self.since >= _ROOM_EVERY:
            self.since = 0
            self.store.check_room(max(0, self.left))


async def fetch(order: Order, store: Store, around: Surroundings, me: Holder, report: Callable[[Progress], None]) -> Progress:
    """The finished tree's digest and place. Raises FetchError; what a transient one leaves is where the next try begins."""
    await asyncio.to_thread(store.prepare)
    try:
        return await _fetch(order, store, around, me, Meter(report))
    except OSError as error:  # the volume: sources speak in errors of the tree
        raise disk_error(error, store.root) from None


async def _fetch(order: Order, store: Store, around: Surroundings, me: Holder, meter: Meter) -> Progress:
    known = order.digest if order.digest and store.holds(order.digest) else ""
    if not known and order.address.immutable:
        known = store.known(order.address.key)
    if not known:
        origin = source(order.address, order.credential, around)
        try:
            known = await _from_source(order, store, (origin, around.limits, me), meter)
        finally:
            await origin.close()
    _expect(order, known)
    done = Progress("done", meter.done, meter.total, known, str(store.place(known)))
    meter.report(done)
    return done


async def _from_source(order: Order, store: Store, means: tuple[Source, Limits, Holder], meter: Meter) -> str:
    origin, limits, me = means
    meter.say("resolving")
    listing = await resolve(origin, limits)
    meter.total, meter.digest = listing.size, listing.digest
    if listing.digest:
        _expect(order, listing.digest)
    key = order.address.key
    if known := _present(store, key, listing):
        return known
    async with locked(store.locks, key, me, limits, lambda: meter.say("waiting")) as lock:
        if known := _present(store, key, listing):
            return known
        return await _download(order, store, (origin, limits, lock), listing, meter)


async def resolve(origin: Source, limits: Limits) -> Listing:
    """The listing, asked for again where that may help."""
    failures = 0
    while True:
        try:
            return await origin.resolve()
        except Transient as error:
            failures += 1
            if failures >= limits.attempts:
                raise
            log.info("again", why=error.reason, message=str(error))
        await asyncio.sleep(pause(limits, failures))


def _present(store: Store, address: str, listing: Listing) -> str:
    if listing.digest and store.holds(listing.digest):
        store.remember(address, listing.key, listing.digest)
    return store.known(address, listing.key)


async def _download(order: Order, store: Store, means: tuple[Source, Limits, OwnedLock], listing: Listing, meter: Meter) -> str:
    staging = await asyncio.to_thread(store.staging, order.address.key, listing.key)
    try:
        sizes = await _staged(store, means, staging, listing, meter)
        _expect(order, tree_digest({name: sha256 for name, (_, sha256) in sizes.items()}))
        tree = staging / TREE if listing.layered else staging
        digest = await asyncio.to_thread(store.publish, tree, sizes, order.address.key, listing.key)
        if listing.layered:
            await asyncio.to_thread(discard, staging)
        return digest
    except (Permanent, NoRoom):
        await asyncio.to_thread(discard, staging)
        raise
    except OSError as error:
        size_text = disk_error(error, store.root)
        if isinstance(size_text, Permanent | NoRoom):
            await asyncio.to_thread(discard, staging)
        raise size_text from None


async def _staged(
    store: Store, means: tuple[Source, Limits, OwnedLock], staging: Path, listing: Listing, meter: Meter
) -> dict[str, tuple[int, str]]:
    """The size and SHA-256 of each file of the model, once all are there."""
    origin, limits, lock = means
    if sizes := await asyncio.to_thread(assembled, staging):
        meter.moved(listing.size)
        return sizes
    missing = max(0, listing.unpacked - await asyncio.to_thread(staged_bytes, staging))
    store.check_room(missing, listing.counted)
    room = Room(store, listing.size)

    def moved(count: int) -> None:
        meter.moved(count)
        room.moved(count)

    found = await _all_files(Work(origin, staging, limits, moved, lock.check, room.grew), listing, limits.parallel)
    meter.say("verifying")
    lock.check()
    return await asyncio.to_thread(_tree, staging, listing, found, limits)


def _tree(staging: Path, listing: Listing, found: dict[str, str], limits: Limits) -> dict[str, tuple[int, str]]:
    """The same, of files that are alone in their folder then."""
    if listing.layered:
        return assemble(staging, listing, limits)
    return {file.name: (file.size, found[file.name]) for file in listing.files}


async def _all_files(work: Work, listing: Listing, parallel: int) -> dict[str, str]:
    """Small files before weights: what is wrong with a model is mostly found in them."""
    found: dict[str, str] = {}
    places = asyncio.Semaphore(parallel)

    async def one(file: RemoteFile) -> None:
        async with places:
            found[file.name] = await pull(work, file)

    try:
        async with asyncio.TaskGroup() as group:
            for file in sorted(listing.files, key=lambda file: (file.name.endswith(WEIGHTS), file.name)):
                group.create_task(one(file))
    except BaseExceptionGroup as many:
        raise _first(many) from None
    return found


def _first(many: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that says most: a permanent fault before a transient one."""
    size_text = [error for error in many.exceptions if isinstance(error, FetchError)]
    return min(size_text, key=lambda error: not isinstance(error, Permanent), default=many.exceptions[0])


def _expect(order: Order, digest: str) -> None:
    if order.digest and digest != order.digest:
        raise Mismatch(f"{order.address.uri} has digest {digest}, asked for is {order.digest}")


async def read_small(origin: Source, file: RemoteFile, limit: int) -> bytes:
    """A small file's content, without a disk."""
    buffer = bytearray()
    async with aclosing(origin.read(file, 0)) as chunks:
        async for chunk in chunks:
            buffer += chunk
            if len(buffer) > min(limit, file.size):
                raise Mismatch(f"{file.name}: more than {min(limit, file.size)} bytes")
    return bytes(buffer)
