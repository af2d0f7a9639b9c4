"""Objects out of the schema's own words, valid, invalid, valid again, deleted: no crash, and in the end as if nothing had been.

Eight services at a time here; `make test-full` makes five hundred transitions.
"""

import json
import uuid
from statistics import median

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pagoda_contracts.resources.service import INFERENCE_SERVICE
from pagoda_operator.api.state import SERVICES
from pagoda_operator.client.requests import path_of
from support.clients.transitions import Transitions
from support.kube.client import eventually
from support.kube.fake_api import service_body
from support.kube.namespace import Real
from support.kube.schema_objects import edits, schema_of

pytestmark = pytest.mark.cluster
EDITS = st.tuples(edits(schema_of(INFERENCE_SERVICE)), st.booleans())


@pytest.fixture
def fresh(cluster, kube, node, real):
    """Another namespace with the same things in it, where nothing bad has happened."""
    harness = Real(cluster, kube, node, f"op-{uuid.uuid4().hex[:8]}")
    harness.prepare()
    yield harness
    harness.clean()


def run(harnesses, operator, slots, rounds):
    """So many rounds on the first harness; what is left of them, against what the same services are in the second."""
    used, untouched = (Transitions(harness, operator, slots, harnesses[0].namespace) for harness in harnesses)
    used.start()

    @settings(max_examples=rounds, phases=[Phase.generate], deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(batch=st.lists(EDITS, min_size=slots, max_size=slots))
    def transitions(batch):
        used.round(batch)

    try:
        transitions()
        left = {name: used.final(name) for name in used.names}
    finally:
        used.clear()  # their served names go to the others
    untouched.start()
    try:
        assert left == {name: untouched.final(name) for name in untouched.names}
    finally:
        untouched.clear()
    return used


@pytest.mark.timeout(1800)
def test_after_bad_objects_a_service_is_as_if_nothing_had_been(real, fresh, operator):
    counts = run((real, fresh), operator, slots=8, rounds=3).counts
    assert counts["made valid"] == 24
    assert min(counts["refused by the operator"], counts["refused by the API server"], counts["deleted"]) >= 1, counts


def test_a_template_of_thousands_of_levels_stalls_its_own_service_and_no_other(real, operator):
    """The API server stores it. Whoever reads it by recursion ends, and with it all that it lists."""
    levels = 9_000
    body = json.dumps(service_body("deep", real.namespace))
    template = '{"spec":' + '{"a":' * levels + "1" + "}" * levels + "}"
    text = body.replace('"spec": {', f'"spec": {{"podTemplate": {template}, ', 1)
    real.cluster.kubectl("create", "--raw", path_of(SERVICES, real.namespace), "-f", "-", input=text)
    try:
        where = ("get", "inferenceservices.serving.pagoda.dev/deep", "-n", real.namespace, "-o")
        told = 'jsonpath={.status.conditions[?(@.type=="Stalled")].message}'
        eventually(lambda: "nested deeper than 64 levels" in real.cluster.kubectl(*where, told), "the field is named")
        real.apply()
        real.serve()
        real.reported(Ready="Available")
    finally:
        real.cluster.kubectl("delete", "inferenceservices.serving.pagoda.dev/deep", "-n", real.namespace)


@pytest.mark.sweep
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_five_hundred_transitions(real, fresh, operator):
    """The wait of invalid objects is told, not judged: what is judged is that nothing but their status was written."""
    used = run((real, fresh), operator, slots=12, rounds=28)
    counts, waits = used.counts, sorted(used.waits)
    slow, slowest = waits[-len(waits) // 10], waits[-1]
    print(f"{dict(counts)}; invalid objects waited {median(waits):.3f} s, a tenth more than {slow:.3f}, at most {slowest:.3f}")
    assert sum(counts.values()) - counts["refused by the API server"] >= 500, counts  # that one changes nothing
    assert counts["refused by the operator"] >= 20, counts
