"""What is read of an InferenceService and of a replica's pod."""

import msgspec
import pytest
from pagoda_contracts.names import (
    ANNOTATION_DEVICE_FAULT,
    ANNOTATION_DRAIN_DEADLINE,
    LABEL_REVISION,
    LABEL_SERVICE,
    LABEL_SERVICE_UID,
)
from pagoda_gateway.watch.cluster import PodObject, ServiceObject
from pagoda_gateway.watch.services import Replica, Service


def pod(name: str, **metadata) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1", "unknown": 1} | metadata}


def parsed(**document):
    return msgspec.convert(pod("p", labels={LABEL_SERVICE: "s", LABEL_SERVICE_UID: "u"}) | document, PodObject).parsed()


def test_a_pod_with_an_address_is_a_replica():
    replica = parsed(status={"phase": "Running", "podIP": "10.0.0.7"})
    assert replica == Replica("ns/p", "ns/s", "u", "10.0.0.7:8000", "10.0.0.7:9000", draining=False)
    assert parsed(status={"podIP": "fd00::7"}).http == "[fd00::7]:8000"


@pytest.mark.parametrize(
    "status", [{}, {"phase": "Pending"}, {"phase": "Failed", "podIP": "10.0.0.7"}, {"phase": "Succeeded", "podIP": "10.0.0.7"}]
)
def test_a_pod_without_address_or_that_ended_is_no_replica(status):
    assert parsed(status=status) is None


@pytest.mark.parametrize("going", [{"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"annotations": {ANNOTATION_DRAIN_DEADLINE: "1"}}])
def test_a_pod_that_is_deleted_or_told_to_drain_is_draining(going):
    document = pod("p", labels={LABEL_SERVICE: "s"}, **going)
    assert parsed(metadata=document["metadata"], status={"podIP": "10.0.0.7"}).draining


def test_a_service_of_a_newer_version_is_read_as_far_as_it_is_known():
    document = {
        "metadata": {"name": "s", "namespace": "ns", "uid": "u", "creationTimestamp": "t"},
        "spec": {"new": 1, "model": {"uri": "x"}},
    }
    assert msgspec.convert(document, ServiceObject).parsed() == Service("ns/s", "u", "t", ("s",))
    document["spec"]["model"]["servedNames"] = ["a", "b"]
    assert msgspec.convert(document, ServiceObject).parsed().served_names == ("a", "b")


def test_a_services_status_tells_the_weights_and_a_pods_annotation_that_its_device_is_faulty():
    revisions = [{"hash": "a", "replicas": 1, "readyReplicas": 1, "weight": 90}, {"hash": "b", "weight": 0}, {"hash": "c"}]
    body = {"metadata": {"name": "s", "namespace": "ns"}, "status": {"revisions": revisions}}
    assert msgspec.convert(body, ServiceObject).parsed().weights == (("a", 90), ("b", 0))
    meta = {"name": "p", "namespace": "ns", "labels": {LABEL_REVISION: "a"}, "annotations": {ANNOTATION_DEVICE_FAULT: "Xid 79"}}
    replica = msgspec.convert({"metadata": meta, "status": {"podIP": "10.0.0.1"}}, PodObject).parsed()
    assert (replica.revision, replica.device_fault) == ("a", "Xid 79")
