"""What the status of a ServingProfile says: what it offers, the field that is wrong, and how many services use it."""

import pytest
from pagoda_contracts.crds.validation import judge
from pagoda_operator.decide.status.profile import parse_profile, profile_status
from support.harness.platforms import default_profile
from support.judges.kstatus import kstatus
from support.kube.fake_api import profile_body

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
ANYWHERE = [{"cidr": "0.0.0.0/0"}]


def told(services=0, now=NOW, status=None, **spec):
    """The whole status of a profile of two images."""
    body = profile_body(**spec)
    body["metadata"] |= {"generation": 3, "uid": "u"}
    return profile_status(parse_profile(body | ({"status": status} if status else {})), services, now)


def ready(status):
    (found,) = [one for one in status["conditions"] if one["type"] == "Ready"]
    return found["status"], found["reason"], found["message"]


def daemon_of(**resources):
    return {"spec": {"containers": [{"name": "daemon", "resources": resources}]}}


ON_CLAIMS = "It cannot be used by services on GPUs with models on claims and services on CPU with models on claims: "
ON_GPUS = "It cannot be used by services on GPUs with models on claims and services on GPUs with fetched models: "


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, "Replicas run localhost/daemon:1. Models are on claims only, because the profile's egress allows no network."),
        ({"images": {"daemon": "d"}, "egress": ANYWHERE}, "Models are on claims only, because images.fetch is not set."),
        # Keys of a person's own are no fields of a pod.
        (
            {"podTemplate": {"metadata": {"labels": {"env": "prod", "spec": "a"}}, "spec": {"nodeSelector": {"volumes": "nvme"}}}},
            "Replicas run",
        ),
        ({"egress": ANYWHERE}, "Models are on claims or fetched. A service's podTemplate may set nothing."),
        ({"allow": ["metadata.labels", "spec.tolerations"]}, "A service's podTemplate may set metadata.labels, spec.tolerations."),
        ({"allow": [f"spec.p{n}" for n in range(64)]}, "spec.p4, spec.p5 and 58 more paths."),
        # A replica on GPUs is charged for them, one on CPU for nothing.
        (
            {"podTemplate": {"metadata": {"annotations": {"serving.pagoda.dev/devices": "gpu=9"}}}},
            ON_GPUS + "the profile's podTemplate sets metadata.annotations.serving.pagoda.dev/devices, which the operator decides itself.",
        ),
        (
            {"podTemplate": {"spec": {"volumes": [{"name": "model", "emptyDir": {"medium": "Memory"}}]}}},
            ON_CLAIMS + "the profile's podTemplate sets spec.volumes[model].emptyDir, which the operator decides itself.",
        ),
    ],
)
def test_a_profile_that_services_can_use_says_what_it_offers_and_to_whom_not(spec, says):
    status, reason, message = ready(told(**spec))
    assert (status, reason) == ("True", "Accepted")
    assert says in message


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"images": {}}, "images.daemon: Field required. Running replicas keep serving"),
        ({"nodeDeadline": "soon"}, "nodeDeadline: "),
        ({"podTemplate": {"spec": {"terminationGracePeriodSeconds": 5}}}, "sets spec.terminationGracePeriodSeconds, which the operator"),
        (
            {"podTemplate": daemon_of(requests={"cpu": "8"}, limits={"cpu": "1"})},
            "requests 8 of cpu, above the limit of 1",
        ),
        ({"podTemplate": daemon_of(limits={"memory": "64Mi"})}, "podTemplate.spec.containers[daemon].resources.limits.memory"),
        ({"podTemplate": {"spec": {"initContainers": [5]}}}, "podTemplate: spec.initContainers[0] must be a map, got 5. Running"),
    ],
)
def test_a_profile_that_no_service_can_use_names_the_field(spec, says):
    status = told(**spec)
    assert ready(status)[:2] == ("False", "InvalidSpec")
    assert says in ready(status)[2]
    assert kstatus({"metadata": {"generation": 3}, "status": status}) == "Failed"


def test_the_charts_own_profile_is_accepted_by_all():
    body = default_profile()
    message = ready(told(**body["spec"]))[2]
    assert "Models are on claims or fetched." in message
    assert "cannot" not in message


def test_a_status_at_rest_is_the_same_each_time_and_a_changed_number_moves_no_condition():
    first = told(services=2)
    assert (first["observedGeneration"], first["services"]) == (3, 2)
    assert told(services=2, now=LATER, status=first) == first
    assert told(services=3, now=LATER, status=first) == first | {"services": 3}
    assert told(services=2, now=LATER, status={"conditions": "spoilt"}) != first


def test_what_is_written_is_valid():
    long = {"allow": [f"spec.{'p' * 240}{n}" for n in range(64)], "podTemplate": {"spec": {"x" * 4000: 1, "serviceAccountName": 5}}}
    for spec in ({}, {"images": {}}, long):
        assert [fault for fault in judge(profile_body() | {"status": told(**spec)}) if "status" in fault.where] == []
