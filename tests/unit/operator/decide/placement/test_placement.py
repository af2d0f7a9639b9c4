"""Which alternative is taken, as a service's status tells it, and that nothing of a spec is dropped in silence."""

import pytest
from pagoda_contracts.resources.effect import idle_scaling, ignored_fields
from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.state import DEPLOYMENTS, SERVICES
from support.harness.harness import Harness
from support.kube.object_table import FULL, SERVICE

CPU = {"cpu": {"cores": "250m", "memory": "1Gi"}}
NIGHT = {"name": "night", "start": "0 22 * * *", "duration": "8h", "min": 0}
GPU, MIG, DRA = {"gpu": {"product": "H100"}}, {"mig": {"profile": "3g.40gb"}}, {"dra": {"deviceClassName": "gpu.nvidia.com"}}


def test_entries_that_no_node_offers_are_rejected_with_a_reason_and_the_next_is_taken():
    harness = Harness(accelerators=[GPU, MIG, DRA, CPU])
    harness.settle()
    harness.make_ready()
    placement = harness.api.of(SERVICES)[0]["status"]["placement"]
    assert placement["chosen"] == "cpu[3]"
    assert [rejected["accelerator"] for rejected in placement["rejected"]] == ["gpu[0]", "mig[1]", "dra[2]"]
    assert [rejected["why"].partition(";")[0] for rejected in placement["rejected"]] == [
        "no node offers a whole GPU H100",
        "no node offers mig-3g.40gb",
        "no ResourceSlice has a device of class gpu.nvidia.com that matches the selectors",
    ]
    assert harness.reason() == "Available"


def test_a_service_that_runs_goes_on_while_its_new_accelerators_cannot_be_had():
    harness = Harness()
    harness.settle()
    harness.make_ready()
    before = harness.names(DEPLOYMENTS)
    harness.edit(accelerators=[{"gpu": {"product": "H1000"}}])
    harness.settle()
    assert (harness.names(DEPLOYMENTS), harness.reason()) == (before, "NoAccelerator")
    assert "ready replica of an older revision continues to serve" in harness.conditions()["Ready"]["message"]


@pytest.mark.parametrize(
    ("scaling", "ignored"),
    [
        ({}, ()),
        ({"min": 1, "predictive": {"enabled": False}, "targets": {}, "behavior": {}}, ()),
        ({"min": 0, "max": 4, "idleAfter": "5m"}, ("min", "max", "idleAfter")),
        ({"min": 2, "targets": {"queueDepth": 4}, "behavior": {"scaleUp": {}}}, ("min", "targets", "behavior")),
        ({"predictive": {"enabled": True}, "schedules": [NIGHT]}, ("schedules", "predictive")),
        ({"mode": "External", "min": 0, "idleAfter": "5m"}, ()),  # idleAfter acts there, and asks for min 0
        ({"mode": "External", "min": 0, "max": 4, "targets": {"queueDepth": 4}}, ("min", "max", "targets")),
        ({"mode": "Auto", "min": 0, "max": 4, "idleAfter": "5m", "targets": {"queueDepth": 4}, "schedules": [NIGHT]}, ()),
    ],
)
def test_words_of_scaling_that_do_nothing_in_a_mode_are_named(scaling, ignored):
    assert idle_scaling(ScalingSpec.model_validate(scaling)) == tuple(f"scaling.{word}" for word in ignored)


def test_the_status_says_in_which_mode_they_do_nothing():
    harness = Harness(scaling={"min": 0, "max": 4})
    harness.settle()
    harness.make_ready()
    assert harness.conditions()["Ready"]["message"].endswith("; of no effect in mode Manual: scaling.min, scaling.max")
    written = len(harness.api.journal)
    harness.restart()
    harness.settle()
    assert len(harness.api.journal) == written


def test_waiting_for_an_accelerator_is_no_new_revision():
    waiting, plain = ({**CPU, "fallbackAfter": "5m"}, CPU)
    assert Harness(accelerators=[waiting]).plan().current == Harness(accelerators=[plain]).plan().current


@pytest.mark.parametrize(
    "field",
    [
        *("engine.kvCache.memoryFraction", "engine.kvCache.cpuOffload"),
        *("model.credential", "credentials", "model.revision", "routing.overflow.service"),
    ],
)
def test_each_field_that_changes_nothing_yet_is_named(field):
    assert field in ignored_fields(InferenceServiceSpec.model_validate(full(field)))


def full(field):
    spec = FULL[SERVICE]
    if field in ("model.credential", "credentials", "model.revision"):  # a claim's files have no use for them
        model = {name: value for name, value in spec["model"].items() if name != "cache"}
        return {name: value for name, value in spec.items() if name != "adapters"} | {"model": {**model, "uri": "pvc://models"}}
    if field != "engine.kvCache.memoryFraction":
        return spec
    cache = {"memoryFraction": 0.9}
    return {**spec, "engine": {**spec["engine"], "kvCache": cache}}


def test_the_status_names_them_and_is_silent_about_defaults_written_out():
    harness = Harness(engine={"kvCache": {"cpuOffload": "1Gi"}})
    harness.settle()
    harness.make_ready()
    assert harness.conditions()["Ready"]["message"].endswith("; not acted on yet: engine.kvCache.cpuOffload")
    silent = {"scaling": {"mode": "Manual"}, "rollout": {}, "engine": {"quantization": "none", "kvCache": {"prefixCaching": True}}}
    spec = InferenceServiceSpec.model_validate({"model": {"uri": "pvc://a"}, "accelerators": [CPU]} | silent)
    assert ignored_fields(spec) == ()
