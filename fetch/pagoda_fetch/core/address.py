"""An address of a model or adapter, parsed once: `parse(uri, revision) -> Address`. Pure.

The CRD lets less through (contracts, ModelUri); this is the border for command lines and for gRPC.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, NamedTuple

from pagoda_fetch.core.errors import ConfigRejected, Unsupported

SCHEMES: Final = ("hf", "s3", "gs", "az", "oci", "https", "pvc")
_MAX_LENGTH: Final = 512
_ADDRESS: Final = re.compile(r"([a-z0-9]+)://([A-Za-z0-9][A-Za-z0-9._:-]*)((?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?")
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# Segments that an address needs below its host: hf://org/name, oci://registry/repository, az://account/container, https://host/folder.
_LEAST_SEGMENTS: Final = {"hf": 1, "oci": 1, "az": 1, "https": 1}


class Address(NamedTuple):
    """Where files are. `host` is an organisation (hf), a bucket (s3, gs), a storage account (az), a registry (oci), a web server (https) or
    a claim (pvc)."""

    scheme: str
    host: str
    path: str
    revision: str

    @property
    def uri(self) -> str:
        """As it was written."""
        return f"{self.scheme}://{self.host}" + (f"/{self.path}" if self.path else "")

    @property
    def immutable(self) -> bool:
        """Whether the revision names a content for ever: then the source need not be asked for what is in the store already."""
        return (self.scheme == "hf" and _COMMIT.fullmatch(self.revision) is not None) or (
            self.scheme == "oci" and _DIGEST.fullmatch(self.revision) is not None
        )

    @property
    def key(self) -> str:
        """A file name for what belongs to this address and revision."""
        return hashlib.sha256(f"{self.uri}\n{self.revision}".encode()).hexdigest()[:32]


def parse(uri: str, revision: str = "") -> Address:
    """The address; ConfigRejected for a malformed one, Unsupported for a scheme that is not built."""
    found = _ADDRESS.fullmatch(uri) if len(uri) <= _MAX_LENGTH else None
    if found is None:
        raise ConfigRejected(f"the address must be <scheme>://<host>[/<path>] without user, query and '..', got {uri[:200]!r}")
    scheme, host, path = found.group(1), found.group(2), found.group(3).strip("/")
    if scheme not in SCHEMES:
        raise Unsupported(f"address {uri!r}: {scheme}:// cannot be fetched; accepted: {', '.join(f'{word}://' for word in SCHEMES)}")
    if path.count("/") + bool(path) < _LEAST_SEGMENTS.get(scheme, 0):
        raise ConfigRejected(f"address {uri!r}: {scheme}:// needs a name after {host!r}")
    if revision and (_REVISION.fullmatch(revision) is None or ".." in revision):
        raise ConfigRejected(f"the revision must be a commit, tag, branch or digest of at most 128 characters, got {revision!r}")
    if revision and scheme in ("s3", "gs", "az", "https", "pvc"):
        raise ConfigRejected(f"revision {revision!r}: {scheme}:// has no revisions; put it into the path")
    return Address(scheme, host, path, revision)


def check_digest(digest: str) -> str:
    """The digest as given, where it is one."""
    if digest and _DIGEST.fullmatch(digest) is None:
        raise ConfigRejected(f"the digest must be sha256:<64 hexadecimal digits>, got {digest[:100]!r}")
    return digest
