"""AdapterStore: the LoRA adapters that a worker holds, by slot, and how one is read. Made with the worker, used by the engine.

Knows no torch, so that a simulated device has one too.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pagoda_contracts.launch import AdaptersConfig

from pagoda_daemon.core.errors import AdapterRejected, ConfigRejected


class Readable(Protocol):
    """What the engine needs to know of an adapter."""

    @property
    def digest(self) -> str: ...

    @property
    def rank(self) -> int: ...


@dataclass(frozen=True, eq=False)
class AdapterStore:
    """`read` may be called on any thread, with a directory and the one below which its files must lie (None: anywhere). `held` is changed
    between two steps only, on the device's thread. `first`: the digests of those that the configuration names, in slots from 1 on."""

    read: Callable[[Path, Path | None], Readable]
    first: tuple[str, ...] = ()
    held: MutableMapping[int, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, config: AdaptersConfig, read: Callable[[Path, Path | None], Readable], held: MutableMapping[int, Any] | None = None
    ) -> AdapterStore:
        """With the adapters that `config` names held, each as soon as it is read; ConfigRejected where one cannot be served."""
        held = {} if held is None else held
        first: list[str] = []
        for module in config.modules:
            try:
                adapter = read(Path(module.path), None)
            except AdapterRejected as error:
                raise ConfigRejected(f"adapters.modules: {module.name}: {error}") from error
            if adapter.digest not in first:
                held[1 + len(set(first))] = adapter
            first.append(adapter.digest)
        return cls(read, tuple(first), held)
