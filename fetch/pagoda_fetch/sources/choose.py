"""Which source an address belongs to. Called by `job`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pagoda_fetch.core.address import Address
from pagoda_fetch.core.credentials import Credential, load
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.sources.base import Source
from pagoda_fetch.sources.claim import Claim
from pagoda_fetch.sources.folder import Folder
from pagoda_fetch.sources.hub import Hub
from pagoda_fetch.sources.objects import Objects
from pagoda_fetch.sources.registry import Registry


@dataclass(frozen=True)
class Surroundings:
    """Where this process finds hubs, credentials and claims."""

    hub: str
    credentials: Path
    claims: Path
    plain_registries: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: Limits = field(default_factory=Limits)


def source(address: Address, credential: str, around: Surroundings) -> Source:
    """The source of an address, with a named credential."""
    proof = _with_endpoints(load(credential, around.credentials, around.environment), around.environment)
    if address.scheme == "hf":
        return Hub(address, proof, around.hub, around.limits)
    if address.scheme == "oci":
        return Registry(address, proof, around.plain_registries, around.limits)
    if address.scheme == "pvc":
        return Claim(address, around.claims, around.limits)
    if address.scheme == "https":
        return Folder(address, around.limits)
    return Objects(address, proof, around.limits)


def _with_endpoints(proof: Credential, environment: Mapping[str, str]) -> Credential:
    """Where a credential names no endpoint or region, the pod's own words count: an administrator's stores."""
    words = ("AWS_ENDPOINT_URL", "AWS_REGION", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT")
    known = {word: environment[word] for word in words if environment.get(word)}
    return replace(proof, words={**known, **proof.words})
