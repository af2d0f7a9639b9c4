"""AdapterLoads: LoRA adapters in and out while the engine runs. Used by `engine.loop` only.

An adapter is read on a thread of its own, so no step waits for a disk. It gets its slot between two steps, on the device's thread, and
loses it there: plans that are under way keep what they were made with.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from pagoda_daemon.core.errors import AdapterMissing, AdapterRejected
from pagoda_daemon.core.messages import AdapterLoaded, AdapterUse, LoadAdapter, ReleaseAdapter
from pagoda_daemon.runner.adapters import AdapterStore, Readable
from pagoda_daemon.scheduler.state import State

_log = structlog.get_logger(__name__)

OnDevice = Callable[[Callable[[], object]], None]


class _Read(NamedTuple):
    message: LoadAdapter
    found: Readable | Exception


class AdapterLoads:
    """Made with what lets the loop wait for a file, and what does something on the device's thread between two steps."""

    def __init__(self, watch: Callable[[int], None], on_device: OnDevice) -> None:
        self._on_device = on_device
        self._store: AdapterStore | None = None
        self._wanted: queue.SimpleQueue[LoadAdapter] = queue.SimpleQueue()
        self._read: queue.SimpleQueue[_Read] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        watch(self._bell)

    def __del__(self) -> None:
        os.close(self._bell)

    def open(self, state: State, store: AdapterStore | None) -> tuple[str, ...]:
        """The worker is loaded: the digests of the adapters that it begins with, each held."""
        self._store = store
        first = () if store is None else store.first
        for adapter in first:
            self._hold(state, adapter)
        return tuple(adapter.digest for adapter in first)

    def take(self, state: State, message: LoadAdapter | ReleaseAdapter) -> AdapterLoaded | None:
        """An answer at once where nothing is to be read."""
        if isinstance(message, ReleaseAdapter):
            state.adapters.release(message.digest)
            return None
        if self._store is None:
            return AdapterLoaded(message.call, error="this daemon takes no adapters")
        if self._thread is None:
            self._thread = threading.Thread(target=self._read_all, args=(self._store,), name="adapters", daemon=True)
            self._thread.start()
        self._wanted.put(message)
        return None

    def hear(self, state: State) -> list[AdapterLoaded]:
        """What was read since the last call."""
        answers: list[AdapterLoaded] = []
        while True:
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                return answers
            answers.append(self._answer(state, *self._read.get()))

    def tidy(self, state: State) -> None:
        """Drop what no name and no request has any more."""
        if self._store is not None:
            for slot in state.adapters.take_freed():
                self._on_device(lambda held=self._store.held, slot=slot: held.pop(slot))  # type: ignore[misc]

    def _hold(self, state: State, adapter: Readable) -> None:
        slot = state.adapters.hold(adapter.digest)
        if slot is not None and self._store is not None:
            held = self._store.held
            self._on_device(lambda: held.__setitem__(slot, adapter))

    def _answer(self, state: State, message: LoadAdapter, found: Readable | Exception) -> AdapterLoaded:
        if not isinstance(found, Exception):
            self._hold(state, found)
            return AdapterLoaded(message.call, found.digest, found.rank)
        if not isinstance(found, AdapterRejected):
            _log.error("adapter not read", error=f"{type(found).__name__}: {found}", exc_info=found)
            return AdapterLoaded(message.call, error="the adapter cannot be read: an internal error", fault=True)
        return AdapterLoaded(message.call, error=str(found), missing=isinstance(found, AdapterMissing))

    def _read_all(self, store: AdapterStore) -> None:
        while True:
            message = self._wanted.get()
            self._read.put(_Read(message, _attempt(store, message)))
            os.eventfd_write(self._bell, 1)


def _attempt(store: AdapterStore, message: LoadAdapter) -> Readable | Exception:
    try:
        return store.read(Path(message.path), Path(message.root))
    except Exception as error:  # noqa: BLE001  the answer to this one message
        return error


def uses(state: State) -> tuple[AdapterUse, ...]:
    """Of every adapter that has requests."""
    found = []
    for digest, (slot, users) in state.adapters.users().items():
        running = int((state.rows.adapter[state.rows.live] == slot).sum())
        if users:
            found.append(AdapterUse(digest, running, users - running))
    return tuple(found)
