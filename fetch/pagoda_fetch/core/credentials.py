"""Credentials: one folder per name, a Secret mounted by the kubelet. Read when they are needed, so that a rotated one is seen.

Nothing here logs; no error names more than a file. Words are those that the clouds' own tools read from their environment.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pagoda_contracts.names import POD_IDENTITY

from pagoda_fetch.core.errors import ConfigRejected

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MAX_BYTES: Final = 64 * 1024
DOCKER: Final = ".dockerconfigjson"
WORDS: Final = (
    *("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BASE_URL", "OCI_USERNAME", "OCI_PASSWORD"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ENDPOINT"),
)
# What platforms set in pods whose ServiceAccount has a cloud identity: IRSA, EKS Pod Identity, Azure workload identity. (GKE sets nothing.)
IDENTITY_WORDS: Final = (
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_SESSION_NAME", "AWS_ENDPOINT_URL_STS"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    *("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_AUTHORITY_HOST"),
)
# Keys of Secrets as people make them, and as `kubernetes.io/basic-auth` has them.
_ALIASES: Final = {"token": "HF_TOKEN", "username": "OCI_USERNAME", "password": "OCI_PASSWORD", "key.json": "GOOGLE_SERVICE_ACCOUNT_KEY"}


@dataclass(frozen=True)
class Credential:
    """What proves our identity; empty for anonymous access. Its text form shows no value."""

    words: Mapping[str, str] = field(default_factory=dict, repr=False)
    registries: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    # Whether it is the cloud identity of the pod's ServiceAccount.
    identity: bool = False

    def get(self, word: str) -> str:
        """A word's value; empty where it is not given."""
        return self.words.get(word, "")

    def registry(self, host: str) -> tuple[str, str] | None:
        """User and password for an OCI registry."""
        if host in self.registries:
            return self.registries[host]
        pair = self.get("OCI_USERNAME"), self.get("OCI_PASSWORD")
        return pair if all(pair) else None


def load(name: str, root: Path, environment: Mapping[str, str]) -> Credential:
    """The named credential; the environment's words where none is named (a person's shell); the pod's own identity for POD_IDENTITY."""
    if name == POD_IDENTITY:
        return Credential({word: environment[word] for word in IDENTITY_WORDS if environment.get(word)}, identity=True)
    if not name:
        return Credential({word: environment[word] for word in WORDS if environment.get(word)})
    if _NAME.fullmatch(name) is None or not (folder := root / name).is_dir():
        raise ConfigRejected(f"credential {name[:80]!r} is not mounted; it must be a name in spec.credentials")
    files = {path.name: _read(path) for path in folder.iterdir() if not path.name.startswith("..") and path.is_file()}
    words = {_ALIASES.get(key, key): text for key, text in files.items()}
    return Credential({word: words[word] for word in WORDS if words.get(word)}, _registries(words.get(DOCKER, "")))


def _read(path: Path) -> str:
    if path.stat().st_size > _MAX_BYTES:
        raise ConfigRejected(f"credential file {path.name!r}: at most {_MAX_BYTES} bytes")
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigRejected(f"credential file {path.name!r} cannot be read: {type(error).__name__}") from None


def _registries(text: str) -> dict[str, tuple[str, str]]:
    if not text:
        return {}
    try:
        entries: dict[str, Any] = json.loads(text)["auths"]
        return {_host(key): _pair(entry) for key, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigRejected(f"credential file {DOCKER!r} must be what `docker login` writes (auths, auth)") from None


def _host(key: str) -> str:
    return key.removeprefix("https://").removeprefix("http://").partition("/")[0]


def _pair(entry: Mapping[str, str]) -> tuple[str, str]:
    if "auth" in entry:
        user, _, password = b64decode(entry["auth"]).decode().partition(":")
        return user, password
    return entry["username"], entry["password"]
