"""OwnToken: the ServiceAccount token that the operator shows to replicas and gateways. Made by process.py; asked by whoever dials them.

The file is read for every question: calls are few, and kubelet renews it when it likes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import structlog
from pagoda_contracts.bearer import AUTHORIZATION, first

from pagoda_operator.api.errors import SettingsError

Metadata = tuple[tuple[str, str], ...]


class OwnToken:
    """SettingsError at the start where the file holds no token."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        try:
            self._shown = first(path.read_text().strip(), clock())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path}: {error}") from error

    def metadata(self) -> Metadata:
        """For a gRPC call."""
        self._refresh()
        return ((AUTHORIZATION, self._shown.used.header),)

    def newest_key(self) -> str:
        """Id of the key that signed the newest token: the cluster signs with it from now on."""
        self._refresh()
        return self._shown.found.key_id

    def _refresh(self) -> None:
        try:
            self._shown = self._shown.seen(self._path.read_text().strip(), self._clock())
        except (OSError, ValueError) as error:
            structlog.get_logger().warning("own_token_unreadable", file=str(self._path), error=type(error).__name__)
