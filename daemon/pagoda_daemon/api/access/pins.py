"""Pins: the versions of adapters that a request took. Made for each request by `routes/admission.py` and `grpc/generate.py`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.access.versions import Version
from pagoda_daemon.core.errors import ModelNotFound, shown


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
