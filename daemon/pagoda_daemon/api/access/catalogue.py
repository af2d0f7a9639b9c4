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
from typing import Any, Final

import structlog
from pagoda_contracts.launch import AdaptersConfig
from pagoda_contracts.metrics import LORA_INFO, Metric
from pagoda_contracts.pb.daemon_pb2 import AdapterPhase, AdapterState

from pagoda_daemon.core.errors import AdapterMissing, AdapterRejected, AdapterTaken, ConfigRejected, ModelNotFound, RequestFailed, shown
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.health.replica import Replica

log = structlog.get_logger()

MAX_NAME: Final = 128
_NAME: Final = re.compile(rf"[A-Za-z0-9._:/@=+-]{{1,{MAX_NAME}}}")


@dataclass(eq=False)
class Version:
    """One content under a name; `users` are the requests that took it, `named` whether the name still stands for it. `source` is the digest
    of all files that the sidecar brought, empty without one."""

    name: str
    digest: str
    created: int
    users: int = 0
    named: bool = True
    source: str = ""

    @property
    def known_as(self) -> str:
        """The digest that people and other components know it by."""
        return self.source or self.digest


class Catalogue:
    """Looked up on any thread, changed in the event loop."""

    def __init__(self, replica: Replica, engine: EngineLink, config: AdaptersConfig, served: Sequence[str]) -> None:
        self.config = config
        self._replica, self._engine, self.served = replica, engine, tuple(served)
        self._versions: dict[str, Version] = {}
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

    def states(self) -> list[AdapterState]:
        """As gateways hear of them: by these names they know which requests use an adapter."""
        known = self.versions().values()
        return [AdapterState(name=one.name, digest=one.known_as, phase=AdapterPhase.ADAPTER_PHASE_LOADED) for one in known]

    def take(self, name: str) -> Version | None:
        """The version that `name` stands for, used once more; None where it is not an adapter."""
        with self._lock:
            version = self._versions.get(name)
            if version is not None:
                version.users += 1
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
            self._check(name, in_place=True)
            await self._load(name, path, path, source)

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
            version = self._versions.pop(name, None)
        if version is None:
            return False
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

    def _check(self, name: str, *, in_place: bool) -> None:
        if not _NAME.fullmatch(name):
            raise AdapterRejected(f"lora_name must be 1 to {MAX_NAME} letters, digits and ._:/@=+-, got {shown(name)}")
        if name in self.served:
            raise AdapterRejected(f"The lora adapter name {name!r} conflicts with a served base model.")
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
        """Of the adapter that `model` stands for, empty for a model's own name; ModelNotFound where it is gone."""
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
