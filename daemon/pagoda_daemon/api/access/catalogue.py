"""Catalogue: which names are LoRA adapters, and which version of each a request uses. Made by `api/front/adapting.py`.

A version is a name with the digest of one content. A request takes the version that its name stands for when it is looked up, and keeps it.
A name stands for one version at a time. A version that lost its name is released when its last request ends.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from pagoda_contracts.launch import AdaptersConfig
from pagoda_contracts.metrics import LORA_INFO, Metric
from pagoda_contracts.pb.daemon_pb2 import ADAPTER_PHASE_LOADED, ADAPTER_PHASE_ON_DISK, AdapterState

from pagoda_daemon.api.access.versions import AdapterOnDisk, OnDisk, Version
from pagoda_daemon.core.errors import (
    AdapterMissing,
    AdapterRejected,
    AdapterTaken,
    ConfigRejected,
    NotReady,
    Overloaded,
    RequestFailed,
    shown,
)
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.health.replica import Replica

log = structlog.get_logger()

MAX_NAME: Final = 128
_NAME: Final = re.compile(rf"[A-Za-z0-9._:/@=+-]{{1,{MAX_NAME}}}")


class Catalogue:
    """Looked up on any thread, changed in the event loop."""

    def __init__(self, replica: Replica, engine: EngineLink, config: AdaptersConfig, served: Sequence[str]) -> None:
        self.config = config
        self._replica, self._engine, self.served = replica, engine, tuple(served)
        self._versions: dict[str, Version] = {}
        self._on_disk: dict[str, OnDisk] = {}
        self._wakes: dict[str, asyncio.Task[None]] = {}
        self._awaited: Counter[str] = Counter()
        self._takes = 0
        self.lost: Callable[[str, str], None] = lambda _name, _why: None
        self._lock = threading.Lock()
        self._loading = asyncio.Lock()
        self._begun = False
        wrong = [module.name for module in config.modules if module.name in served or not _NAME.fullmatch(module.name)]
        if wrong or len({module.name for module in config.modules}) < len(config.modules) or len(config.modules) > config.max_loaded:
            raise ConfigRejected(
                f"adapters.modules: at most {config.max_loaded} (adapters.maxLoaded), each with a name of its own of letters, digits and "
                f"._:/@=+-, that is not a served name; got {', '.join(module.name for module in config.modules)[:200]}"
            )
        replica.listeners.append(self._begin)

    def versions(self) -> Mapping[str, Version]:
        """By name, in the order of loading."""
        with self._lock:
            return dict(self._versions)

    def has(self, name: str) -> bool:
        """Whether the name stands for an adapter."""
        with self._lock:
            return name in self._versions or name in self._on_disk

    def names(self) -> Mapping[str, tuple[str, int]]:
        """Each name with the digest that it is known by, and since when: loaded ones, and those that a request loads."""
        with self._lock:
            loaded = {name: (one.known_as, one.created) for name, one in self._versions.items()}
            return {name: (one.source, one.created) for name, one in self._on_disk.items()} | loaded

    def states(self) -> list[AdapterState]:
        """As gateways hear of them: by these names they know which requests use an adapter."""
        loaded = [AdapterState(name=one.name, digest=one.known_as, phase=ADAPTER_PHASE_LOADED) for one in self.versions().values()]
        rest = [(name, one) for name, one in self._on_disk.items() if name not in self._versions]
        return loaded + [AdapterState(name=name, digest=one.source, phase=ADAPTER_PHASE_ON_DISK) for name, one in rest]

    def take(self, name: str) -> Version | None:
        """The version that `name` stands for, used once more; None where it is not an adapter, AdapterOnDisk where it is not loaded."""
        with self._lock:
            version = self._versions.get(name)
            if version is not None:
                self._takes += 1
                version.users, version.taken = version.users + 1, self._takes
            elif name in self._on_disk:
                raise AdapterOnDisk(name)
            return version

    def give_back(self, version: Version) -> None:
        """Used once less."""
        with self._lock:
            version.users -= 1
        self._tidy(version)

    async def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Let `name` stand for the adapter in `path`; AdapterRejected says why not, AdapterTaken that it stands for one already."""
        root = Path(self.config.directory or "")
        async with self._loading:
            self._check(name, in_place=in_place)
            await self._load(name, root / path, root)

    async def bring(self, name: str, path: Path, source: str) -> None:
        """Let `name` stand for the files that the sidecar brought, whatever it stood for; AdapterRejected says why not."""
        async with self._loading:
            self._make_room(name)
            self._check(name, in_place=True)
            await self._load(name, path, path, source)
            with self._lock:
                self._on_disk.pop(name, None)

    async def offer(self, name: str, path: Path, source: str, *, pinned: bool = False) -> None:
        """Let `name` stand for the files that the sidecar brought, once a request asks for it; at once, if its old content is loaded. They
        are read now all the same: AdapterRejected says why they cannot be used."""
        async with self._loading:
            self._check_name(name)
            version = await self._read(name, path, path, source)
            with self._lock:
                self._on_disk[name] = OnDisk(path, source, int(time.time()), pinned)
                loaded = name in self._versions
            self._name(version) if loaded else self._retire(version)
        self._replica.changed()

    @asynccontextmanager
    async def awake(self, name: str) -> AsyncIterator[None]:
        """Loads an adapter that is on disk, in the place of the one that was used least recently, and keeps it for as long as the context
        lasts. Overloaded where others keep all places, NotReady where its files are gone. A load goes on if those who wait for it leave."""
        self._awaited[name] += 1
        try:
            if name in self._on_disk and name not in self._versions:
                task = self._wakes.get(name) or asyncio.create_task(self._wake(name))
                if name not in self._wakes:
                    self._wakes[name] = task
                    task.add_done_callback(partial(self._woken, name))
                await self._until(task)
            yield
        finally:
            self._awaited[name] -= 1
            if not self._awaited[name]:
                del self._awaited[name]

    async def _until(self, task: asyncio.Task[None]) -> None:
        """Waits, and counts as a request that waits: scaling hears of it."""
        self._replica.waking += 1
        self._replica.changed()
        try:
            await asyncio.shield(task)
        finally:
            self._replica.waking -= 1
            self._replica.changed()

    def _woken(self, name: str, task: asyncio.Task[None]) -> None:
        del self._wakes[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("adapter_not_woken", name=name, error=str(error))

    async def _wake(self, name: str) -> None:
        async with self._loading:
            found = self._on_disk.get(name)
            if found is None or name in self._versions:
                return
            self._make_room(name)
            if len(self._versions) >= self.config.max_loaded:
                raise Overloaded(f"requests use all {self.config.max_loaded} places for adapters")
            try:
                version = await self._read(name, found.path, found.path, found.source)
            except AdapterRejected as error:
                with self._lock:
                    self._on_disk.pop(name, None)
                self.lost(name, str(error))
                raise NotReady(f"the files of adapter {shown(name)} are lost and are brought again: {error}") from error
            with self._lock:
                wanted = self._on_disk.get(name) is found  # the catalogue may have changed meanwhile
            self._name(version) if wanted else self._retire(version)

    def _make_room(self, name: str) -> None:
        """Evicts the adapter that was used least recently of those that a request loads again, if there is no place for another one."""
        with self._lock:
            if name in self._versions or len(self._versions) < self.config.max_loaded:
                return
            files = self._on_disk
            free = [one for one in self._versions.values() if not one.users and not self._awaited[one.name]]
            idle = [one for one in free if one.name in files and not files[one.name].pinned]
            evicted = min(idle, key=lambda one: one.taken, default=None)
            if evicted is not None:
                del self._versions[evicted.name]
        if evicted is not None:
            self._retire(evicted)
            log.info("adapter_evicted", name=evicted.name, digest=evicted.known_as)

    async def _load(self, name: str, path: Path, root: Path, source: str = "") -> None:
        self._name(await self._read(name, path, root, source))

    async def _read(self, name: str, path: Path, root: Path, source: str = "") -> Version:
        """Reads the files into the engine's memory, for a name or to be released."""
        loaded = await self._engine.load_adapter(str(path), str(root))
        if loaded.fault:
            raise RequestFailed(loaded.error)
        if loaded.error:
            raise (AdapterMissing if loaded.missing else AdapterRejected)(loaded.error)
        log.info("adapter_read", name=name, digest=source or loaded.digest, rank=loaded.rank)
        return Version(name, loaded.digest, int(time.time()), source=source)

    def unload(self, name: str) -> bool:
        """Whether `name` stood for an adapter; requests that use it go on."""
        with self._lock:
            version, files = self._versions.pop(name, None), self._on_disk.pop(name, None)
        if version is None:
            return files is not None
        self._retire(version)
        self._replica.changed()
        log.info("adapter_unloaded", name=name, digest=version.digest, users=version.users)
        return True

    def uses(self) -> dict[Metric, float | Mapping[Any, float]]:
        """vLLM's metric: the most adapters, and the names of those for which requests wait and run. Its value is the time."""
        names: dict[str, list[str]] = {}
        for version in self.versions().values():
            names.setdefault(version.digest, []).append(version.name)
        uses = self._replica.adapters
        waiting = [name for use in uses if use.waiting for name in names.get(use.digest, ())]
        running = [name for use in uses if use.running for name in names.get(use.digest, ())]
        return {LORA_INFO: {(str(self.config.max_loaded), ",".join(waiting), ",".join(running)): time.time()}}

    def _begin(self) -> None:
        """The engine is ready: it holds what the configuration names."""
        if self._begun or self._replica.limits is None:
            return
        self._begun = True
        for module, digest in zip(self.config.modules, self._replica.limits.adapters, strict=True):
            self._name(Version(module.name, digest, int(time.time())))

    def _check_name(self, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise AdapterRejected(f"lora_name must be 1 to {MAX_NAME} letters, digits and ._:/@=+-, got {shown(name)}")
        if name in self.served:
            raise AdapterRejected(f"The lora adapter name {name!r} conflicts with a served base model.")

    def _check(self, name: str, *, in_place: bool) -> None:
        self._check_name(name)
        if name in self._versions:
            if not in_place:
                raise AdapterTaken(name)
        elif len(self._versions) >= self.config.max_loaded:
            raise AdapterRejected(f"{len(self._versions)} adapters are loaded; at most {self.config.max_loaded} may be: unload one")

    def _name(self, version: Version) -> None:
        with self._lock:
            before = self._versions.get(version.name)
            self._versions[version.name] = version
            self._takes += 1
            version.taken = self._takes
        if before is not None:
            self._retire(before)
        self._replica.changed()  # gateways hear of it now

    def _retire(self, version: Version) -> None:
        version.named = False
        self._tidy(version)

    def _tidy(self, version: Version) -> None:
        if not version.named and not version.users:
            self._engine.release_adapter(version.digest)
