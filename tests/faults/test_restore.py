"""The store is restored from a copy while operators run: versions go back, and an API server accepts a watch from a version that is not
there yet and tells it nothing until it is. Nobody may stay blind, and what the restored objects ask for is what there must be."""

import pytest
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, SERVICES
from support.harness.service_life import PROFILE, harness_of, judged, leave
from support.kube.control_plane import copied, restore
from support.kube.fault_plan import Plan
from support.kube.namespace import NAMESPACES
from support.kube.recorded import Recorder

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]
# Writes that the copy does not have. Without them its versions would have caught up with the watches' in seconds, and nobody be blind.
AGE = 400


@pytest.mark.parametrize("lease", [pytest.param(True, marks=pytest.mark.full, id="on a Lease"), pytest.param(False, id="alone")])
def test_after_a_restore_the_service_is_what_its_restored_spec_says_and_follows_its_user_again(
    lease, cluster, kube, undisturbed, place, proxy, account, tmp_path
):
    with harness_of(place(), proxy, account, lease=lease) as harness:
        proxy.begin(Plan())
        harness.real.apply(replicas=1, **PROFILE)
        harness.rest(1)
        copy = copied(cluster, tmp_path)
        harness.real.edit(replicas=2, engine={"maxModelLen": 128})
        harness.rest(2)
        for number in range(AGE):
            kube.merge(NAMESPACES, "", harness.real.namespace, {"metadata": {"annotations": {"age": str(number)}}})
        late = int(kube.version())
        restore(cluster, kube, copy)
        assert int(kube.version()) < late
        proxy.begin(Plan())
        asked = len(kube.asked)
        harness.outcome.rests.clear()
        with Recorder(kube, harness.real.namespace, (SERVICES, PODS, *CHILD_RESOURCES)) as recorder:
            harness.rest(1, hold=True)
            harness.real.edit(replicas=2)
            harness.rest(2, hold=True)
            leave(harness)
        assert judged(recorder.ordered(), proxy.journal, kube.asked[asked:]) == []
        assert harness.life.deaths <= lease
    assert harness.outcome.rests == undisturbed("grown").rests
