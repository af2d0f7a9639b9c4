"""Catalogue: which names are LoRA adapters, and which version of each a request uses. Made by `front.py`.

A version is a name with the digest of one content. A request takes the version that its name stands for when it is looked up, and keeps it.
A name stands for one version at a time. A version that lost its name is released when its last request ends.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
from pagoda_contracts.launch import AdaptersConfig
from pagoda_contracts.metrics import LORA_INFO, Metric
from pagoda_contracts.pb.daemon_pb2 import ADAPTER_PHASE_LOADED, ADAPTER_PHASE_ON_DISK, AdapterState

from pagoda_daemon.core.errors import (
    AdapterMissing,
    AdapterRejected,
    AdapterTaken,
    ConfigRejected,
    ModelNotFound,
    Overloaded,
    RequestFailed,
    shown,
)
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.health.replica import Replica

log = structlog.get_logger()

MAX_NAME: Final = 128
_NAME: Final = re.compile(rf"[A-Za-z0-9._:/@=+-]{{1,{MAX_NAME}}}")


@dataclass(eq=False)
class Version:
    """One content under a name; `users` are the requests that took it, `named` whether the name still stands for it, `taken` the number of
    the last take. `source` is the digest of all files that the sidecar brought, empty without one."""

    name: str
    digest: str
    created: int
    users: int = 0
    named: bool = True
    source: str = ""
    taken: int = 0

    @property
    def known_as(self) -> str:
        """The digest that people and other components know it by."""
        return self.source or self.digest


class OnDisk(NamedTuple):
    """Files of an adapter that the first request for it loads, and since when they are here. A pinned one is never evicted."""

    path: Path
    source: str
    created: int
    pinned: bool = False


class AdapterOnDisk(Exception):
    """A request asks for an adapter that is not loaded. No error: the request waits while `Catalogue.wake` loads it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Catalogue:
    """Looked up on any thread, changed in the event loop."""

    def __init__(self, replica: Replica, engine: EngineLink, config: AdaptersConfig, served: Sequence[str]) -> None:
        self.config = config
        self._replica, self._engine, self.served = replica, engine, tuple(served)
        self._versions: dict[str, Version] = {}
        self._on_disk: dict[str, OnDisk] = {}
        self._takes = 0
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
        return dict(self._versions)

    def names(self) -> Mapping[str, tuple[str, int]]:
        """Each name with the digest that it is known by, and since when: loaded ones, and those that a request loads."""
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
            self._on_disk.pop(name, None)

    async def offer(self, name: str, path: Path, source: str, *, pinned: bool = False) -> None:
        """Let `name` stand for the files that the sidecar brought, once a request asks for it; at once, if its old content is loaded."""
        async with self._loading:
            self._check_name(name)
            if name in self._versions:
                await self._load(name, path, path, source)
            self._on_disk[name] = OnDisk(path, source, int(time.time()), pinned)
        self._replica.changed()

    async def wake(self, name: str) -> None:
        """Loads an adapter that is on disk, in the place of the one that was used least recently. Overloaded where requests use all
        places, AdapterRejected where its files are none."""
        async with self._loading:
            found = self._on_disk.get(name)
            if found is None or name in self._versions:
                return
            self._make_room(name)
            if len(self._versions) >= self.config.max_loaded:
                raise Overloaded(f"requests use all {self.config.max_loaded} places for adapters")
            await self._load(name, found.path, found.path, found.source)

    def _make_room(self, name: str) -> None:
        """Evicts the adapter that was used least recently of those that a request loads again, if there is no place for another one."""
        with self._lock:
            if name in self._versions or len(self._versions) < self.config.max_loaded:
                return
            files = self._on_disk
            idle = [one for one in self._versions.values() if not one.users and one.name in files and not files[one.name].pinned]
            evicted = min(idle, key=lambda one: one.taken, default=None)
            if evicted is not None:
                del self._versions[evicted.name]
        if evicted is not None:
            self._retire(evicted)
            log.info("adapter_evicted", name=evicted.name, digest=evicted.known_as)

    async def _load(self, name: str, path: Path, root: Path, source: str = "") -> None:
        loaded = await self._engine.load_adapter(str(path), str(root))
        if loaded.fault:
            raise RequestFailed(loaded.error)
        if loaded.error:
            raise (AdapterMissing if loaded.missing else AdapterRejected)(loaded.error)
        self._name(Version(name, loaded.digest, int(time.time()), source=source))
        self._replica.changed()  # gateways hear of it now
        log.info("adapter_loaded", name=name, digest=source or loaded.digest, rank=loaded.rank)

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
        if before is not None:
            self._retire(before)

    def _retire(self, version: Version) -> None:
        version.named = False
        self._tidy(version)

    def _tidy(self, version: Version) -> None:
        if not version.named and not version.users:
            self._engine.release_adapter(version.digest)


class Pins:
    """The versions that one request took, given back when it ends. A thread that comes later takes none."""

    def __init__(self, catalogue: Catalogue | None) -> None:
        self._catalogue = catalogue
        self._taken: list[Version] = []
        self._lock = threading.Lock()
        self._closed = False

    def digest_of(self, model: str | None, served: Sequence[str]) -> str:
        """Of the adapter that `model` stands for, empty for a model's own name; ModelNotFound where it is gone, AdapterOnDisk where it is
        not loaded."""
        if self._catalogue is None or model is None or model in served:
            return ""
        with self._lock:
            version = None if self._closed else self._catalogue.take(model)
            if version is None:
                raise ModelNotFound(f"model {shown(model)} is not served here any more")
            self._taken.append(version)
        return version.digest

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for version in self._taken:
            if self._catalogue is not None:
                self._catalogue.give_back(version)


@contextmanager
def pinning(catalogue: Catalogue | None) -> Iterator[Pins]:
    """While a request is answered."""
    pins = Pins(catalogue)
    try:
        yield pins
    finally:
        pins.close()
