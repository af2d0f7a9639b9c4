"""What a name of an adapter may stand for: a loaded content, or files that the first request loads. Kept by `catalogue.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


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
    """A request asks for an adapter that is not loaded. No error: the request waits while `Catalogue.awake` loads it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
