"""tls_context: the certificate of the API's port, renewed while the gateway runs; grpc_credentials: the same for Envoy's port. Called by
process.py.

Kubelet renews a mounted Secret by swapping a link. Each handshake looks at the files, at most once a second, and uses what they hold now;
connections that are open keep theirs. Files that cannot be used leave the last certificate in use.

The daemon has a twin of it (`api/http/tls.py`): components import nothing of each other, and contracts, which both import, read no files.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import grpc
import structlog

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 1.0


Files = tuple[Path, Path]
T = TypeVar("T")


def tls_context(certificate: Path, key: Path, clock: Callable[[], float] = time.monotonic) -> ssl.SSLContext:
    """Returns a context whose handshakes use the files of now; OSError or ValueError if they cannot be used at the start. Each handshake is
    moved to the context of the files as they are now, which was read whole before."""
    renewed = _Renewed((certificate, key), _loaded, clock)
    context = renewed.now()

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = renewed.now()

    context.sni_callback = choose
    return context


def grpc_credentials(certificate: Path, key: Path, clock: Callable[[], float] = time.monotonic) -> grpc.ServerCredentials:
    """The same for a gRPC server, which asks before each handshake."""
    renewed = _Renewed((certificate, key), _pair, clock)
    return grpc.dynamic_ssl_server_credentials(renewed.now(), renewed.now)


class _Renewed(Generic[T]):
    """What `load` makes of the files as they are now."""

    def __init__(self, files: Files, load: Callable[[Path, Path], T], clock: Callable[[], float]) -> None:
        self._files, self._load, self._clock = files, load, clock
        self._signature, self._looked = self._stat(), clock()
        self._now = load(*files)

    def now(self) -> T:
        """Looks at the files, at most once a second."""
        now = self._clock()
        if now - self._looked >= _LOOK_EVERY_S:
            self._looked = now
            self._look()
        return self._now

    def _look(self) -> None:
        try:
            if (signature := self._stat()) == self._signature:
                return
            self._signature = signature  # also of files that cannot be used, so that they are read and logged once
            self._now = self._load(*self._files)
            log.info("certificate_renewed", file=str(self._files[0]))
        except (OSError, ValueError) as error:
            log.warning("certificate_unusable", file=str(self._files[0]), why=str(error), kept="the one before")

    def _stat(self) -> tuple[tuple[int, ...], ...]:
        found = [file.stat() for file in self._files]
        return tuple((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in found)


def _pair(certificate: Path, key: Path) -> grpc.ServerCertificateConfiguration:
    """gRPC takes any bytes, and its handshakes fail then. So OpenSSL judges the same bytes first."""
    found = certificate.read_bytes(), key.read_bytes()
    _loaded(certificate, key)
    return grpc.ssl_server_certificate_configuration([(found[1], found[0])])


def _loaded(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 is the oldest version that is spoken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # OpenSSL would ask the terminal for a password; an empty one fails instead.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        said = "a certificate and its private key in PEM, without a password"
        raise ValueError(f"{certificate} and {key} must be {said}: {error.reason or error}") from error
    return context
