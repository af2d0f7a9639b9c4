"""Watches InferenceServices and the EndpointSlices of their replicas and keeps the cache as they say. Started by serve/process.py.

pagoda_kube follows each kind; here is what is read of an object. While the API server is away, the cache stays as it is, and the gateway
goes on serving. It writes nothing to the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import Configuration
from pagoda_contracts.conditions.service import NOT_SERVED_YET
from pagoda_contracts.conditions.table import reasons
from pagoda_contracts.conditions.types import SERVICE, SERVING, STALLED
from pagoda_contracts.names import GROUP, VERSION, of_class
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from pagoda_kube.api import KubernetesApi
from pagoda_kube.cache import Cache, Changed, Item, Key
from pagoda_kube.reflector import Kind, Reflector, Signs

from pagoda_gateway.access.keys import KeyRing
from pagoda_gateway.limits.registry import Registry
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.key_secrets import watch_keys
from pagoda_gateway.watch.objects import Meta
from pagoda_gateway.watch.quotas import QUOTAS, watch_quotas
from pagoda_gateway.watch.routing_spec import RoutingSpec
from pagoda_gateway.watch.services import Replica, Service
from pagoda_gateway.watch.slices import SLICES, Sink, Slices

V = TypeVar("V")


class _Model(msgspec.Struct, rename="camel"):
    served_names: tuple[str, ...] = ()


class _ServiceSpec(msgspec.Struct, rename="camel"):
    model: _Model = msgspec.field(default_factory=_Model)
    routing: RoutingSpec = RoutingSpec()


class _Revision(msgspec.Struct, rename="camel"):
    hash: str = ""
    weight: int | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _ServiceStatus(msgspec.Struct, rename="camel"):
    conditions: tuple[_Condition, ...] = ()
    revisions: tuple[_Revision, ...] = ()
    served_names: tuple[str, ...] = ()
    ready_expected_at: str = ""
    adapter_names: tuple[str, ...] = ()
    faulty_replicas: tuple[str, ...] = ()


class ServiceObject(msgspec.Struct, rename="camel"):
    """An InferenceService. Fields that this version does not know are ignored."""

    metadata: Meta
    spec: _ServiceSpec = msgspec.field(default_factory=_ServiceSpec)
    status: _ServiceStatus = msgspec.field(default_factory=_ServiceStatus)

    def parsed(self) -> Service:
        """Returns it as routing sees it."""
        meta = self.metadata
        weights = tuple((one.hash, one.weight) for one in self.status.revisions if one.weight is not None)
        wanted, owned = self.spec.model.served_names or (meta.name,), self.status.served_names
        return Service(
            meta.key,
            meta.uid,
            meta.creation_timestamp,
            wanted,
            weights,
            owned,
            _stalled(self.status.conditions),
            self.spec.routing.kind(),
            self.spec.routing.holds(),
            self.spec.routing.overflows(),
            _epoch_ms(self.status.ready_expected_at),
            self.status.adapter_names,
            not any((one.type, one.reason) == (SERVING.name, NOT_SERVED_YET.name) for one in self.status.conditions),
            frozenset(f"{meta.namespace}/{pod}" for pod in self.status.faulty_replicas),
        )


def _epoch_ms(rfc3339: str) -> int:
    try:
        return int(datetime.fromisoformat(rfc3339).timestamp() * 1000) if rfc3339 else 0
    except ValueError:
        return 0


# Reasons that no newer operator has are held for: they may pass.
_FOR_A_PERSON: Final = frozenset(reason.name for reason in reasons() if reason.person_only and reason.kind == SERVICE)
_MAX_MESSAGE: Final = 512


def _stalled(conditions: Iterable[_Condition]) -> str:
    for one in conditions:
        if one.type == STALLED.name and one.status == "True" and one.reason in _FOR_A_PERSON:
            return f"{one.reason}: {one.message[:_MAX_MESSAGE]}"
    return ""


def read_service(raw: msgspec.Raw) -> Item[Service]:
    """An InferenceService as the API server writes it."""
    read = msgspec.json.decode(raw, type=ServiceObject)
    return read.metadata.item(read.parsed())


SERVICES: Final = Kind(f"/apis/{GROUP}/{VERSION}/{INFERENCE_SERVICE.plural}", read_service)


def classed(kind: Kind[V], service_class: str) -> Kind[V]:
    """Only those of the class."""
    return kind._replace(query=(("labelSelector", of_class(service_class, *(term for _, term in kind.query))),))


async def watch(
    cache: EndpointCache,
    kubeconfig: Path | None,
    keys: tuple[str, KeyRing] | None = None,
    quotas: Registry | None = None,
    service_class: str = "",
) -> None:
    """Keeps the cache as the cluster says, until it is cancelled. `kubeconfig` None: the pod's own account. `keys`: the namespace whose
    Secrets hold API keys, and the ring that they fill. `quotas` takes the TenantQuotas. `service_class`: of the services, their replicas
    and the quotas; empty for those without one."""
    api = KubernetesApi(await _configuration(kubeconfig))
    services = Cache[Service](_updating(cache.put_service, cache.delete_service))
    slices = Cache[tuple[Replica, ...]](Slices(Sink(cache.put_replica, cache.delete_replica)).changed)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(
                Reflector(api, classed(SERVICES, service_class), services, Signs(lambda: cache.mark_synced("services"))).run()
            )
            group.create_task(Reflector(api, classed(SLICES, service_class), slices, Signs(lambda: cache.mark_synced("replicas"))).run())
            if keys is not None:
                group.create_task(watch_keys(api, *keys))
            if quotas is not None:
                group.create_task(watch_quotas(api, classed(QUOTAS, service_class), quotas))
    finally:
        await api.close()


def _updating(put: Callable[[V], None], delete: Callable[[str], None]) -> Changed[V]:
    """What routing sees of an object is put; one of which it sees nothing any more is deleted."""

    def changed(key: Key, _before: V | None, after: V | None) -> None:
        if after is None:
            delete(f"{key.namespace}/{key.name}")
        else:
            put(after)

    return changed


async def _configuration(kubeconfig: Path | None) -> Configuration:
    configuration = Configuration()
    if kubeconfig is None:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration
