"""Replicas out of EndpointSlices: what is read of one slice, and what several of them say of one pod."""

import msgspec
import pytest
from pagoda_contracts.names import LABEL_SERVICE, LABEL_SERVICE_UID
from pagoda_gateway.watch.services import Replica
from pagoda_gateway.watch.slices import Sink, SliceObject, Slices
from pagoda_kube.cache import Key

LABELS = {LABEL_SERVICE: "s", LABEL_SERVICE_UID: "u", "kubernetes.io/service-name": "s"}
META = {"name": "s-1", "namespace": "ns", "labels": LABELS}
POD = {"kind": "Pod", "name": "p", "namespace": "ns", "uid": "1"}
REPLICA = Replica("ns/p", "ns/s", "u", "10.0.0.7:8000", "10.0.0.7:9000", draining=False)
SIX = REPLICA._replace(http="[fd00::7]:8000", grpc="[fd00::7]:9000")
ONE, TWO = Key("ns", "s-1"), Key("ns", "s-2")


def parsed(*endpoints: dict | None, **document) -> tuple[Replica, ...]:
    return msgspec.convert({"metadata": META, "endpoints": list(endpoints)} | document, SliceObject).parsed()


def endpoint(address: str = "10.0.0.7", target: dict | None = POD, **conditions) -> dict:
    return {"addresses": [address], "conditions": conditions, "targetRef": target, "nodeName": "n", "zone": "z"}


@pytest.mark.parametrize(
    ("conditions", "draining"),
    [
        ({}, False),
        ({"ready": False, "serving": False}, False),
        ({"ready": True, "serving": True, "terminating": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, True),
    ],
)
def test_a_pod_with_an_address_is_a_replica_ready_or_not_and_drains_once_it_is_deleted(conditions, draining):
    assert parsed(endpoint(**conditions)) == (REPLICA._replace(draining=draining),)
    assert parsed({"addresses": ["10.0.0.7"], "targetRef": POD}) == (REPLICA,)


def test_what_is_no_pod_s_is_no_replica_and_an_empty_slice_has_none():
    assert parsed(endpoint(target=None), endpoint(target=POD | {"kind": "Node"}), {"addresses": [], "targetRef": POD}) == ()
    assert parsed(endpoints=None) == ()
    assert parsed(endpoint("fd00::7")) == (SIX,)


@pytest.mark.parametrize(
    "labels",
    [
        LABELS | {"kubernetes.io/service-name": "copy-of-s"},
        LABELS | {LABEL_SERVICE_UID: ""},
        {LABEL_SERVICE: "s", LABEL_SERVICE_UID: "u"},
        {LABEL_SERVICE: "s", "kubernetes.io/service-name": "s"},
        {LABEL_SERVICE_UID: "u"},
    ],
)
def test_slices_of_a_service_that_only_has_the_labels_have_no_replicas(labels):
    assert parsed(endpoint(), metadata=META | {"labels": labels}) == ()


class Harness:
    """What the sink was told since it was asked last."""

    def __init__(self) -> None:
        self._told: list[Replica | str] = []
        self.slices = Slices(Sink(self._told.append, self._told.append))

    def told(self, key: Key, before: tuple[Replica, ...] | None, after: tuple[Replica, ...] | None) -> list[Replica | str]:
        self.slices.changed(key, before, after)
        told, self._told[:] = list(self._told), []
        return told


def test_only_the_replicas_of_a_slice_that_changed_are_told():
    harness, other = Harness(), REPLICA._replace(name="ns/q", http="10.0.0.8:8000")
    assert harness.told(ONE, None, (REPLICA,)) == [REPLICA]
    assert harness.told(ONE, (REPLICA,), (REPLICA, other)) == [other]
    gone = other._replace(draining=True)
    assert harness.told(ONE, (REPLICA, other), (REPLICA, gone)) == [gone]
    assert harness.told(ONE, (REPLICA, gone), (REPLICA,)) == ["ns/q"]
    assert harness.told(ONE, (REPLICA,), None) == ["ns/p"]


def test_a_pod_in_two_slices_is_one_replica_until_it_is_in_none():
    harness = Harness()
    assert harness.told(TWO, None, (SIX,)) == [SIX]
    assert harness.told(ONE, None, (REPLICA,)) == [REPLICA]
    assert harness.told(TWO, (SIX,), (SIX._replace(draining=True),)) == [REPLICA._replace(draining=True)]
    assert harness.told(ONE, (REPLICA,), None) == [SIX._replace(draining=True)]
    assert harness.told(TWO, (SIX._replace(draining=True),), ()) == ["ns/p"]
