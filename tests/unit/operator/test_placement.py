"""Which alternative is taken, and that nothing of a spec is dropped in silence."""

import pytest
from object_table import FULL, SERVICE
from operator_world import World
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.placement import place
from pagoda_operator.state import DEPLOYMENTS, SERVICES
from pagoda_operator.unheeded import FIELDS, unheeded

CPU = {"cpu": {"cores": "250m", "memory": "1Gi"}}
GPU, MIG, DRA = {"gpu": {"product": "H100"}}, {"mig": {"profile": "3g.40gb"}}, {"dra": {"deviceClassName": "gpu.nvidia.com"}}


def test_entries_that_nothing_can_place_yet_are_rejected_with_a_reason_and_the_next_is_taken():
    world = World(accelerators=[GPU, MIG, DRA, CPU])
    world.settle()
    world.make_ready()
    placement = world.api.of(SERVICES)[0]["status"]["placement"]
    assert placement["chosen"] == "cpu[3]"
    assert [rejected["accelerator"] for rejected in placement["rejected"]] == ["gpu[0]", "mig[1]", "dra[2]"]
    assert all("not built yet; accepted: cpu" in rejected["why"] for rejected in placement["rejected"])
    assert world.reason() == "Available"


def test_without_an_entry_that_can_be_taken_the_service_stalls_and_nothing_is_made():
    world = World(accelerators=[GPU])
    world.settle()
    assert world.conditions()["Stalled"]["status"] == "True"
    assert (world.reason(), world.names(DEPLOYMENTS)) == ("NoAccelerator", [])
    assert "gpu[0]: gpu accelerators are not built yet" in world.conditions()["Ready"]["message"]


def test_a_service_that_runs_goes_on_while_its_new_accelerators_cannot_be_had():
    world = World()
    world.settle()
    world.make_ready()
    before = world.names(DEPLOYMENTS)
    world.edit(accelerators=[GPU])
    world.settle()
    assert (world.names(DEPLOYMENTS), world.reason()) == (before, "NoAccelerator")
    assert "ready of an older revision keep serving" in world.conditions()["Ready"]["message"]


def test_a_model_that_nothing_can_fetch_stalls_and_names_what_can_be_served():
    world = World(model={"uri": "hf://org/name"})
    world.settle()
    assert (world.reason(), world.names(DEPLOYMENTS)) == ("UnsupportedUri", [])
    assert "hf://org/name" in world.conditions()["Ready"]["message"]
    assert "accepted: pvc://<claim>" in world.conditions()["Ready"]["message"]


def test_waiting_for_an_accelerator_is_no_new_revision():
    waiting, plain = ({**CPU, "fallbackAfter": "5m"}, CPU)
    assert World(accelerators=[waiting]).plan().current == World(accelerators=[plain]).plan().current


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_that_changes_nothing_yet_is_named(field):
    assert field in unheeded(InferenceServiceSpec.model_validate(full(field)))


def full(field):
    spec = FULL[SERVICE]
    if field != "engine.kvCache.memoryFraction":
        return spec
    cache = {"memoryFraction": 0.9}
    return {**spec, "engine": {**spec["engine"], "kvCache": cache}}


def test_the_status_names_them_and_is_silent_about_defaults_written_out():
    world = World(slo={"ttft": "800ms"}, scaling={"mode": "Auto", "max": 2})
    world.settle()
    world.make_ready()
    assert world.conditions()["Ready"]["message"].endswith("; not acted on yet: scaling, slo")
    silent = {"scaling": {"mode": "Manual"}, "rollout": {}, "engine": {"quantization": "none", "kvCache": {"prefixCaching": True}}}
    spec = InferenceServiceSpec.model_validate({"model": {"uri": "pvc://a"}, "accelerators": [CPU]} | silent)
    assert unheeded(spec) == ()


def test_every_alternative_that_is_refused_has_its_place_and_kind():
    spec = InferenceServiceSpec.model_validate({"model": {"uri": "pvc://a"}, "accelerators": [MIG]})
    assert place(spec).entry is None
    assert place(spec).why_none.startswith("no entry of accelerators can be used: mig[0]: ")
