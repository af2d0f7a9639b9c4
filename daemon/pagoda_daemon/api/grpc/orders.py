"""SetAdapters: brings the adapters that the operator wants, and tells how far each one is. Made by `api/front/adapting.py`.

An order has the whole catalogue. What is not in it any more is unloaded, what is new or has another content is fetched and loaded, each on
its own. A name stands for its old content until the new one is loaded. What fails is tried again until it is there or no longer wanted, so
that a repaired claim or a sidecar that comes back needs no new order.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import structlog
from pagoda_contracts.names import GRPC_SET_ADAPTERS
from pagoda_contracts.pb.daemon_pb2 import (
    ADAPTER_PHASE_FAILED,
    ADAPTER_PHASE_FETCHING,
    ADAPTER_PHASE_KNOWN,
    ADAPTER_PHASE_LOADED,
    ADAPTER_PHASE_ON_DISK,
    Adapter,
    AdapterPhase,
    AdapterState,
    SetAdaptersRequest,
    SetAdaptersResponse,
)

from pagoda_daemon.api.access.caller import Principal
from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.grpc.fetching import Entry, Fetch
from pagoda_daemon.api.grpc.server import Context, Method, check_pod
from pagoda_daemon.core.errors import AdapterRejected, BadRequest, NotBuilt, RequestFailed, StaleCatalogue, shown
from pagoda_daemon.health.replica import Replica

log = structlog.get_logger()

_MOST: Final = 1024
_DIGEST: Final = re.compile(r"(sha256:[0-9a-f]{64})?")
# Fetches at a time. The sidecar refuses more than 32, and each has several files under way.
_FETCHES: Final = 8
_FIRST_DELAY_S: Final = 1.0
_LONGEST_DELAY_S: Final = 60.0
# The catalogue itself says which of the two an adapter is.
_HERE: Final = (ADAPTER_PHASE_LOADED, ADAPTER_PHASE_ON_DISK)


@dataclass(eq=False)
class _Wanted:
    """An entry and how far it is; `digest` is that of the files that were brought."""

    entry: Entry
    phase: AdapterPhase = ADAPTER_PHASE_KNOWN
    digest: str = ""
    reason: str = ""
    task: asyncio.Task[None] | None = None

    @property
    def state(self) -> AdapterState:
        return AdapterState(name=self.entry.name, digest=self.digest or self.entry.digest, phase=self.phase, reason=self.reason)

    def serves(self, entry: Entry) -> bool:
        """Whether nothing is to be done for this entry: it is the same one, or it only names the digest that was found."""
        return self.entry == entry or (self.entry._replace(digest=entry.digest) == entry and self.digest == entry.digest != "")

    def drop(self) -> None:
        if self.task is not None:
            self.task.cancel()


class AdapterOrders:
    """`catalogue` and `fetch` are None where the configuration has no adapters, or no sidecar that brings them; `uid` is our pod's."""

    def __init__(self, replica: Replica, catalogue: Catalogue | None, fetch: Fetch | None, uid: str = "") -> None:
        self._replica, self._catalogue, self._fetch, self._uid = replica, catalogue, fetch, uid
        self._wanted: dict[str, _Wanted] = {}
        self._last = (0, 0)
        self._ready, self._fetches = asyncio.Event(), asyncio.Semaphore(_FETCHES)
        replica.listeners.append(self._look)
        if catalogue is not None:
            catalogue.lost = self._lost

    @property
    def generation(self) -> int:
        """Of the catalogue that was taken last."""
        return self._last[1]

    def method(self) -> Method:
        return Method(GRPC_SET_ADAPTERS, SetAdaptersRequest, unary=self.set_adapters)

    async def set_adapters(self, caller: Principal, request: SetAdaptersRequest, _context: Context) -> SetAdaptersResponse:
        """The gRPC method."""
        if self._catalogue is None or self._fetch is None:
            raise NotBuilt("this replica takes no catalogue: its configuration has no adapters.fetchPort")
        check_pod(request.pod_uid, self._uid)
        entries = _parsed(request.adapters, self._catalogue.served)
        self._replica.drain = self._replica.drain.obeyed(request.epoch)
        order = (request.epoch, request.generation)
        if order < self._last:
            raise StaleCatalogue(f"generation {request.generation} is over: generation {self._last[1]} was taken")
        if order != self._last:
            log.info("catalogue", by=caller.name, epoch=request.epoch, generation=request.generation, adapters=len(entries))
        self._last = order
        self._take(entries, self._catalogue, self._fetch)
        here = {state.name: state for state in self._catalogue.states()}
        wanted = (self._wanted[entry.name] for entry in entries)
        states = (here.get(one.entry.name, one.state) if one.phase in _HERE else one.state for one in wanted)
        return SetAdaptersResponse(generation=request.generation, adapters=states)

    def states(self) -> list[AdapterState]:
        """As gateways and the operator hear of them: what every name stands for, and what is on its way."""
        here = [] if self._catalogue is None else self._catalogue.states()
        return [*here, *(one.state for one in self._wanted.values() if one.phase not in _HERE)]

    def close(self) -> None:
        """Nothing is brought any more."""
        for one in self._wanted.values():
            one.drop()

    def _take(self, entries: tuple[Entry, ...], catalogue: Catalogue, fetch: Fetch) -> None:
        names = {entry.name for entry in entries}
        for name in [name for name in self._wanted if name not in names]:
            self._wanted.pop(name).drop()
            catalogue.unload(name)
        for entry in entries:
            known = self._wanted.get(entry.name)
            if known is not None and known.serves(entry):
                known.entry = entry
                continue
            if known is not None:
                known.drop()
            one = self._wanted[entry.name] = _Wanted(entry)
            one.task = asyncio.create_task(self._bring(one, catalogue, fetch))
        self._replica.changed()

    async def _bring(self, one: _Wanted, catalogue: Catalogue, fetch: Fetch) -> None:
        delay = _FIRST_DELAY_S
        while True:
            try:
                await self._once(one, catalogue, fetch)
                return
            except (AdapterRejected, RequestFailed) as error:
                log.warning("adapter_not_loaded", name=one.entry.name, uri=one.entry.uri, error=str(error), again_s=delay)
                self._now(one, ADAPTER_PHASE_FAILED, str(error))
            await asyncio.sleep(delay)
            delay = min(_LONGEST_DELAY_S, delay * 2)

    async def _once(self, one: _Wanted, catalogue: Catalogue, fetch: Fetch) -> None:
        def begun() -> None:
            if one.phase == ADAPTER_PHASE_KNOWN:
                self._now(one, ADAPTER_PHASE_FETCHING)

        async with self._fetches:
            found = await fetch(one.entry, begun)
        await self._ready.wait()
        name, on_demand, pinned = one.entry.name, one.entry.on_demand, one.entry.pinned
        if on_demand:
            await catalogue.offer(name, found.path, found.digest, pinned=pinned)
        else:
            await catalogue.bring(name, found.path, found.digest)
        one.digest = found.digest
        self._now(one, ADAPTER_PHASE_ON_DISK if on_demand else ADAPTER_PHASE_LOADED)

    def _lost(self, name: str, why: str) -> None:
        """The files of an adapter that was on disk cannot be read any more: they are brought again."""
        one = self._wanted.get(name)
        if one is not None and self._catalogue is not None and self._fetch is not None:
            one.drop()
            self._now(one, ADAPTER_PHASE_FAILED, why)
            one.task = asyncio.create_task(self._bring(one, self._catalogue, self._fetch))

    def _now(self, one: _Wanted, phase: AdapterPhase, reason: str = "") -> None:
        one.phase, one.reason = phase, reason
        self._replica.changed()

    def _look(self) -> None:
        if self._replica.limits is not None:
            self._ready.set()


def _parsed(adapters: Iterable[Adapter], served: tuple[str, ...]) -> tuple[Entry, ...]:
    """The entries; BadRequest names the one that cannot be meant."""
    entries = tuple(Entry(one.name, one.uri, one.digest, one.credential, one.on_demand, one.pinned) for one in adapters)
    if len(entries) > _MOST:
        raise BadRequest(f"adapters must have at most {_MOST} entries, got {len(entries)}", "adapters")
    names: set[str] = set()
    for entry in entries:
        if entry.name in names or entry.name in served or not entry.uri:
            raise BadRequest(f"adapters: {shown(entry.name)} must be named once, have a uri, and not be a served name", "adapters")
        if not _DIGEST.fullmatch(entry.digest):
            raise BadRequest(f"adapters: the digest of {shown(entry.name)} must be sha256:<64 hex digits>", "adapters")
        names.add(entry.name)
    return entries
