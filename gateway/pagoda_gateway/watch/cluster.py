"""Watches InferenceServices and replicas' pods in the whole cluster and keeps the cache as they say. Started by serve/process.py.

reflector.py follows one kind; here is what is read of an object. It writes nothing to the cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from pagoda_contracts.names import (
    ANNOTATION_DEVICE_FAULT,
    ANNOTATION_DRAIN_DEADLINE,
    GROUP,
    LABEL_REVISION,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
    VERSION,
)
from pagoda_contracts.resources.service import INFERENCE_SERVICE

from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.reflector import Meta, Reflector, Store
from pagoda_gateway.watch.services import Replica, Service


class _Model(msgspec.Struct, rename="camel"):
    served_names: tuple[str, ...] = ()


class _ServiceSpec(msgspec.Struct, rename="camel"):
    model: _Model = msgspec.field(default_factory=_Model)


class _Revision(msgspec.Struct, rename="camel"):
    hash: str = ""
    weight: int | None = None


class _ServiceStatus(msgspec.Struct, rename="camel"):
    revisions: tuple[_Revision, ...] = ()
    served_names: tuple[str, ...] = ()


class ServiceObject(msgspec.Struct, rename="camel"):
    """An InferenceService. Fields that this version does not know are ignored."""

    metadata: Meta
    spec: _ServiceSpec = msgspec.field(default_factory=_ServiceSpec)
    status: _ServiceStatus = msgspec.field(default_factory=_ServiceStatus)

    def parsed(self) -> Service:
        """Returns it as routing sees it."""
        meta = self.metadata
        weights = tuple((one.hash, one.weight) for one in self.status.revisions if one.weight is not None)
        wanted, held = self.spec.model.served_names or (meta.name,), self.status.served_names
        return Service(meta.key, meta.uid, meta.creation_timestamp, wanted, weights, held)


class _PodStatus(msgspec.Struct, rename="camel"):
    phase: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")


class PodObject(msgspec.Struct, rename="camel"):
    """A replica's pod."""

    metadata: Meta
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    def parsed(self) -> Replica | None:
        """Returns it as routing sees it; None if the pod has no address or has ended."""
        meta, status = self.metadata, self.status
        if not status.pod_ip or status.phase in ("Succeeded", "Failed"):
            return None
        host = f"[{status.pod_ip}]" if ":" in status.pod_ip else status.pod_ip
        return Replica(
            name=meta.key,
            service=f"{meta.namespace}/{meta.labels.get(LABEL_SERVICE, '')}",
            service_uid=meta.labels.get(LABEL_SERVICE_UID, ""),
            http=f"{host}:{PORT_DAEMON_HTTP}",
            grpc=f"{host}:{PORT_DAEMON_GRPC}",
            draining=meta.deletion_timestamp is not None or ANNOTATION_DRAIN_DEADLINE in meta.annotations,
            revision=meta.labels.get(LABEL_REVISION, ""),
            device_fault=meta.annotations.get(ANNOTATION_DEVICE_FAULT, ""),
        )


async def watch(cache: EndpointCache, kubeconfig: Path | None) -> None:
    """Keeps the cache as the cluster says, until it is cancelled. `kubeconfig` None: the pod's own account."""
    api = await _connect(kubeconfig)
    services = Store(ServiceObject, lambda read: cache.put_service(read.parsed()), cache.delete_service)
    pods = Store(PodObject, partial(_put_pod, cache), cache.delete_replica)
    try:
        async with asyncio.TaskGroup() as both:
            path = f"/apis/{GROUP}/{VERSION}/{INFERENCE_SERVICE.plural}"
            both.create_task(Reflector(api, path, services, lambda: cache.mark_synced("services")).run())
            selected = [("labelSelector", LABEL_SERVICE)]
            both.create_task(Reflector(api, "/api/v1/pods", pods, lambda: cache.mark_synced("replicas"), selected).run())
    finally:
        await api.close()


def _put_pod(cache: EndpointCache, pod: PodObject) -> None:
    replica = pod.parsed()
    if replica is None:
        cache.delete_replica(pod.metadata.key)
    else:
        cache.put_replica(replica)


async def _connect(kubeconfig: Path | None) -> KubernetesApi:
    configuration = Configuration()
    if kubeconfig is None:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    return KubernetesApi(ApiClient(configuration))


class KubernetesApi:
    """reflector.py's Api by the client library, which handles kubeconfigs, TLS and the renewal of a pod's token. Raw JSON only."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def get(self, path: str, query: Sequence[tuple[str, str]], limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Returns the answer's head."""
        headers = {"accept": "application/json"}
        request = await self._client.param_serialize(
            "GET", path, query_params=list(query), header_params=headers, auth_settings=["BearerToken"]
        )
        answer = await self._client.call_api(*request, _request_timeout=limits)
        response: aiohttp.ClientResponse = answer.response
        return response

    async def close(self) -> None:
        """Closes its connections."""
        await self._client.close()  # type: ignore[no-untyped-call]
