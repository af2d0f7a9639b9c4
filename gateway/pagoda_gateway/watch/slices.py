"""Replicas by the EndpointSlices of their services' Services. Kubernetes writes them, for Ready pods and for others that have an address.

A slice has the labels of its Service, which the operator makes for each InferenceService. It says which pods there are, their addresses,
and which of them are being deleted. A replica's own state says the rest: its revision, and whether it drains.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from pagoda_contracts.names import LABEL_SERVICE, LABEL_SERVICE_UID, PORT_DAEMON_GRPC, PORT_DAEMON_HTTP
from pagoda_kube.cache import Item, Key
from pagoda_kube.reflector import Kind

from pagoda_gateway.watch.objects import Meta
from pagoda_gateway.watch.services import Replica

_NAME: Final = "kubernetes.io/service-name"
# Others mirror addresses that a person wrote; these are the addresses of pods that the Service selects.
_BY_KUBERNETES: Final = "endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io"


class _Conditions(msgspec.Struct):
    terminating: bool | None = None


class _Target(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _Endpoint(msgspec.Struct, rename="camel"):
    addresses: tuple[str, ...] = ()
    conditions: _Conditions | None = None
    target_ref: _Target | None = None


class SliceObject(msgspec.Struct, rename="camel"):
    """An EndpointSlice. `endpoints` is null if there is none."""

    metadata: Meta
    endpoints: tuple[_Endpoint, ...] | None = None

    def parsed(self) -> tuple[Replica, ...]:
        """Returns its replicas as routing sees them; none unless the operator's own Service has made it, which has the service's name."""
        labels = self.metadata.labels
        if not labels.get(LABEL_SERVICE_UID) or labels.get(_NAME) != labels.get(LABEL_SERVICE, ""):
            return ()
        return tuple(
            self._replica(one.target_ref.name, one)
            for one in self.endpoints or ()
            if one.addresses and one.target_ref is not None and one.target_ref.kind == "Pod"
        )

    def _replica(self, pod: str, endpoint: _Endpoint) -> Replica:
        meta, address = self.metadata, endpoint.addresses[0]
        host = f"[{address}]" if ":" in address else address
        return Replica(
            name=f"{meta.namespace}/{pod}",
            service=f"{meta.namespace}/{meta.labels[LABEL_SERVICE]}",
            service_uid=meta.labels[LABEL_SERVICE_UID],
            http=f"{host}:{PORT_DAEMON_HTTP}",
            grpc=f"{host}:{PORT_DAEMON_GRPC}",
            draining=bool(endpoint.conditions and endpoint.conditions.terminating),
        )


def read_slice(raw: msgspec.Raw) -> Item[tuple[Replica, ...]]:
    """An EndpointSlice as the API server writes it."""
    read = msgspec.json.decode(raw, type=SliceObject)
    return read.metadata.item(read.parsed())


SLICES: Final = Kind("/apis/discovery.k8s.io/v1/endpointslices", read_slice, (("labelSelector", f"{LABEL_SERVICE},{_BY_KUBERNETES}"),))


class Sink(NamedTuple):
    """What takes the replicas: one that is new or has changed, and the name of one that is gone."""

    put: Callable[[Replica], None]
    delete: Callable[[str], None]


class Slices:
    """Tells replicas from slices. A pod is in two of them while it is moved, or if it has addresses of both families."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._found: dict[str, dict[Key, Replica]] = {}

    def changed(self, key: Key, before: tuple[Replica, ...] | None, after: tuple[Replica, ...] | None) -> None:
        """One slice changed."""
        was, now = ({one.name: one for one in replicas or ()} for replicas in (before, after))
        for name in was.keys() | now.keys():
            if was.get(name) != now.get(name):
                self._change(name, key, now.get(name))

    def _change(self, name: str, key: Key, replica: Replica | None) -> None:
        found = self._found.setdefault(name, {})
        if replica is None:
            del found[key]
        else:
            found[key] = replica
        if found:
            self._sink.put(_one_of(*found.values()))
        else:
            del self._found[name]
            self._sink.delete(name)


def _one_of(*replicas: Replica) -> Replica:
    """The same replica out of several slices: at its IPv4 address if it has one, and draining if any of them says so."""
    chosen = min(replicas, key=lambda one: ("[" in one.http, one.http))
    return chosen._replace(draining=any(one.draining for one in replicas))
