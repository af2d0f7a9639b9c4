"""tls_context: certificate and key of the HTTP port, renewed while the replica runs. Called by `front.py` by way of `listener`.

kubelet renews a mounted Secret by swapping a link. Each handshake looks at the files, at most once a second, and uses what they hold now;
connections that are open keep theirs. Files that cannot be used leave the last certificate in use.

The gateway has a twin of it (`serve/tls.py`): components import nothing of each other, and contracts, which both import, read no files.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
from pagoda_contracts.launch import TlsConfig

from pagoda_daemon.core.errors import ConfigRejected

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 1.0


def tls_context(config: TlsConfig | None, clock: Callable[[], float] = time.monotonic) -> ssl.SSLContext | None:
    """None without TLS; ConfigRejected names the file that cannot be used at the start. TLS 1.2 is the oldest version that is spoken."""
    return None if config is None else _Renewed(config, clock).context


class _Renewed:
    """`context` listens; each handshake is moved to the context of the files as they are now, which was read whole before."""

    def __init__(self, config: TlsConfig, clock: Callable[[], float]) -> None:
        self._config, self._clock = config, clock
        self.context = self._now = _loaded(config)  # first: it names a file that is not there
        self._signature, self._looked = self._stat(), clock()
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        now = self._clock()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            self._look()
        connection.context = self._now

    def _look(self) -> None:
        try:
            if (signature := self._stat()) == self._signature:
                return
            self._signature = signature  # also of files that cannot be used, so that they are read and logged once
            self._now = _loaded(self._config)
            log.info("certificate_renewed", path=self._config.cert_file)
        except (OSError, ConfigRejected) as error:
            log.warning("certificate_unusable", path=self._config.cert_file, reason=str(error), kept="the one before")

    def _stat(self) -> tuple[tuple[int, ...], ...]:
        found = [Path(file).stat() for file in (self._config.cert_file, self._config.key_file) if file is not None]
        return tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in found)


def _loaded(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    files = config.cert_file if config.key_file is None else f"{config.cert_file} and {config.key_file}"
    try:
        # OpenSSL would ask the terminal for a password; an empty one fails instead.
        context.load_cert_chain(config.cert_file, config.key_file, password="")
    except ssl.SSLError as error:
        said = "a certificate and its private key in PEM, without a password"
        raise ConfigRejected(f"listen.tls: {files} must be {said}: {error.reason or error}") from error
    except OSError as error:
        raise ConfigRejected(f"listen.tls: {files} cannot be read: {error.strerror}") from error
    return context
