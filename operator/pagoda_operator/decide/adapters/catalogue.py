"""Which LoraAdapters a service's replicas should have, and why the others are refused. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from pagoda_contracts.conditions import adapter as reasons
from pagoda_contracts.conditions.types import Reason
from pagoda_contracts.name_owners import NOTHING_RESERVED, Reserved
from pagoda_contracts.resources.adapter import LoraAdapterSpec
from pagoda_contracts.resources.effect import CLAIM_SCHEME
from pagoda_contracts.resources.service import InferenceServiceSpec

from pagoda_operator.api.adapters import Adapter, Entry, Namespace
from pagoda_operator.api.state import Key
from pagoda_operator.decide.render import fetch

# As many as the service's status may name.
_MOST_NAMES: Final = 1024

Owner = Callable[[str], Key | None]


class Refusal(NamedTuple):
    """Why an adapter is in no catalogue."""

    reason: Reason
    message: str


class Catalogue(NamedTuple):
    """Adapters that the service's replicas should have, in the order of their age; the others with the reason."""

    accepted: tuple[Adapter, ...] = ()
    refused: tuple[tuple[Adapter, Refusal], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that clients may put into `model`."""
        return tuple(adapter.served_name for adapter in self.accepted)


class Host(NamedTuple):
    """The service: its key, its spec (None if it cannot be read), the names that it is served by, who owns a name, the namespaces that are
    known, and the names that are reserved."""

    key: Key
    spec: InferenceServiceSpec | None
    served_names: tuple[str, ...]
    owner: Owner
    namespaces: tuple[Namespace, ...] = ()
    reserved: Reserved = NOTHING_RESERVED

    def allows(self, namespace: str) -> bool:
        """Whether it accepts adapters of that other namespace."""
        adapters = self.spec.adapters if self.spec is not None else None
        selector = adapters.allow_from.selector if adapters is not None else None
        if selector is None:
            return False
        wanted = selector.match_labels.items()
        return any(one.name == namespace and wanted <= one.labels for one in self.namespaces)


def catalogue(host: Host | None, adapters: Iterable[Adapter]) -> Catalogue:
    """`host` is None if there is no such service. The oldest adapters come first: a younger one never takes a name or a place."""
    accepted: dict[str, Adapter] = {}
    refused: list[tuple[Adapter, Refusal]] = []
    for adapter in sorted((one for one in adapters if not one.deleting), key=lambda one: one.rank):
        why = _refusal(host, adapter, accepted)
        if why is None:
            accepted[adapter.served_name] = adapter
        else:
            refused.append((adapter, why))
    return Catalogue(tuple(accepted.values()), tuple(refused))


def _refusal(host: Host | None, adapter: Adapter, older: Mapping[str, Adapter]) -> Refusal | None:
    """The first thing that is wrong with it."""
    if adapter.spec is None:
        return Refusal(reasons.INVALID, adapter.invalid)
    if host is None:
        return Refusal(reasons.NO_SERVICE, f"there is no InferenceService {adapter.service.name} in {adapter.service.namespace}")
    if adapter.meta.namespace != host.key.namespace and not host.allows(adapter.meta.namespace):
        return Refusal(reasons.NOT_ALLOWED, f"spec.adapters.allowFrom of the service does not accept namespace {adapter.meta.namespace}")
    if host.spec is None or host.spec.adapters is None:
        return Refusal(reasons.NOT_ENABLED, f"InferenceService {host.key.name} has no spec.adapters")
    if wrong := _source(adapter, adapter.spec, host.spec):
        return Refusal(reasons.INVALID, wrong)
    return _rivalled(host, adapter, older, host.spec.adapters.max_loaded)


def _rivalled(host: Host, adapter: Adapter, older: Mapping[str, Adapter], most: int) -> Refusal | None:
    """What older ones, other services and the administrator keep from it. The adapter's author takes the name, and its service has it, so
    both namespaces must be allowed to."""
    for namespace in (adapter.meta.namespace, host.key.namespace):
        if why := host.reserved.why_not(adapter.served_name, namespace):
            return Refusal(reasons.NAME_RESERVED, f"namespace {namespace} may not have this name: {why}")
    if taken := _taken(host, adapter, older):
        return Refusal(reasons.NAME_TAKEN, taken)
    crowded = _crowded(adapter, older.values(), most)
    return Refusal(reasons.TOO_MANY, crowded) if crowded else None


def _crowded(adapter: Adapter, older: Collection[Adapter], most: int) -> str:
    """Those that share places need one among them. With placement Replicas it depends on the replicas (places.py)."""
    if len(older) >= _MOST_NAMES:
        return f"the service has {_MOST_NAMES} older adapters"
    everywhere = sum(other.copies is None and not other.shares_place for other in older)
    shared = any(other.shares_place for other in older)
    if everywhere + (0 if adapter.shares_place else shared) < most:
        return ""
    return f"{most} older adapters have all places of spec.adapters.maxLoaded"


def _source(adapter: Adapter, spec: LoraAdapterSpec, service: InferenceServiceSpec) -> str:
    uri, credential = spec.source.uri, spec.source.credential
    claims = fetch.adapter_claims(service)
    if uri.startswith(CLAIM_SCHEME) and fetch.claim(uri) not in claims:
        known = ", ".join(claims) or "none"
        return (
            f"claim {fetch.claim(uri)!r} is not mounted into the replicas; name it in the service's spec.adapters.claims (mounted: {known})"
        )
    return _credential(adapter, uri, credential, service) if credential is not None else ""


def _credential(adapter: Adapter, uri: str, credential: str, service: InferenceServiceSpec) -> str:
    """Whoever may create adapters need not be allowed to read the service's Secrets, so no Secret goes to a host of their choice."""
    if adapter.meta.namespace != adapter.service.namespace:
        return "source.credential is the service's, which adapters of other namespaces may not use"
    if credential not in (one.name for one in service.credentials):
        return f"source.credential {credential!r} is not a name in the service's spec.credentials"
    if uri.startswith(("oci://", "az://")) and _host(uri) != _host(service.model.uri):
        return f"source.credential goes to the registry or account of the model only, not to {_host(uri)}"
    return ""


def _host(uri: str) -> str:
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _taken(host: Host, adapter: Adapter, older: Mapping[str, Adapter]) -> str:
    name = adapter.served_name
    if name in host.served_names:
        return f"{name!r} is the name of the service's model"
    if (other := older.get(name)) is not None:
        return f"{name!r} is the name of LoraAdapter {other.meta.name}, which is older"
    owner = host.owner(name)
    return f"{name!r} is a name of service {owner.namespace}/{owner.name}" if owner is not None and owner != host.key else ""


def entry_of(adapter: Adapter) -> Entry:
    """As an accepted adapter is sent to replicas."""
    if adapter.spec is None:
        raise ValueError(f"{adapter.meta.name} was refused: its spec cannot be read")
    source = adapter.spec.source
    return Entry(adapter.served_name, source.uri, adapter.digest, source.credential or "", adapter.spec.pinned, adapter.on_demand)
