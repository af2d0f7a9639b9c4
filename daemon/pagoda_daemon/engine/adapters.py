"""AdapterLoads: LoRA adapters in and out while the engine runs. Used by `engine.loop` only.

An adapter is read on a thread of its own, so no step waits for a disk. It is put into its slot between two steps, on the device's thread,
and leaves it there: plans that are under way keep what they were made with. The front hears of it when it is in, or why it is not.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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


class _Put(NamedTuple):
    """`why`: it has a slot, and is not in it."""

    answer: AdapterLoaded
    why: Exception | None


class AdapterLoads:
    """Made with what lets the loop wait for a file, and what does something on the device's thread between two steps."""

    def __init__(self, watch: Callable[[int], None], on_device: OnDevice) -> None:
        self._on_device = on_device
        self._store: AdapterStore | None = None
        self._wanted: queue.SimpleQueue[LoadAdapter] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[_Read | _Put] = queue.SimpleQueue()
        self._bell = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = None
        watch(self._bell)

    def __del__(self) -> None:
        os.close(self._bell)

    def open(self, state: State, store: AdapterStore | None) -> tuple[str, ...]:
        """The worker is loaded: the digests of the adapters that it begins with, each held."""
        self._store = store
        first = () if store is None else store.first
        for digest in first:
            state.adapters.hold(digest)  # gives the slots that they are in
        return first

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
        """What was loaded or refused since the last call."""
        answers: list[AdapterLoaded] = []
        while True:
            try:
                os.eventfd_read(self._bell)
            except BlockingIOError:
                return answers
            ended = self._ended.get()
            if isinstance(ended, _Put):
                answers.append(_outcome(state, ended))
            elif isinstance(ended.found, Exception):
                answers.append(_refusal(ended.message.call, ended.found))
            else:
                self._hold(state, ended.message, ended.found)

    def tidy(self, state: State) -> None:
        """Drop what no name and no request has any more."""
        if self._store is not None:
            for slot in state.adapters.take_freed():
                self._on_device(lambda held=self._store.held, slot=slot: held.pop(slot, None))  # type: ignore[misc]

    def _hold(self, state: State, message: LoadAdapter, adapter: Readable) -> None:
        if self._store is not None:
            self.tidy(state)  # what left has its place no more
            state.adapters.hold(adapter.digest)
            slot = state.adapters.slot_of(adapter.digest)
            self._on_device(partial(self._put, self._store.held, slot, message.call, adapter))

    def _put(self, held: MutableMapping[Any, Any], slot: int | None, call: int, adapter: Readable) -> None:
        """On the device's thread. A slot may be filled already, or not by an earlier load of the same content, which failed."""
        why = None
        try:
            if slot not in held:
                held[slot] = adapter
        except Exception as error:  # noqa: BLE001  the answer to this one message
            why = error
        self._tell(_Put(AdapterLoaded(call, adapter.digest, adapter.rank), why))

    def _tell(self, ended: _Read | _Put) -> None:
        self._ended.put(ended)
        os.eventfd_write(self._bell, 1)

    def _read_all(self, store: AdapterStore) -> None:
        while True:
            message = self._wanted.get()
            self._tell(_Read(message, _attempt(store, message)))


def _attempt(store: AdapterStore, message: LoadAdapter) -> Readable | Exception:
    try:
        return store.read(Path(message.path), Path(message.root))
    except Exception as error:  # noqa: BLE001  the answer to this one message
        return error


def _outcome(state: State, put: _Put) -> AdapterLoaded:
    if put.why is None:
        return put.answer
    state.adapters.release(put.answer.digest)
    return _refusal(put.answer.call, put.why)


def _refusal(call: int, error: Exception) -> AdapterLoaded:
    if isinstance(error, AdapterRejected):
        return AdapterLoaded(call, error=str(error), missing=isinstance(error, AdapterMissing))
    _log.error("adapter not loaded", error=f"{type(error).__name__}: {error}", exc_info=error)
    return AdapterLoaded(call, error="the adapter cannot be loaded: an internal error", fault=True)


def uses(state: State) -> tuple[AdapterUse, ...]:
    """Of every adapter that has requests."""
    found = []
    for digest, (slot, users) in state.adapters.users().items():
        running = int((state.rows.adapter[state.rows.live] == slot).sum())
        if users:
            found.append(AdapterUse(digest, running, users - running))
    return tuple(found)
