"""A service on devices, from its object to its pods: what is asked for, what is pinned, what is waited for, and that nothing flaps."""

from dataclasses import replace
from datetime import timedelta

import pytest
from pagoda_contracts.names import ANNOTATION_PLACEMENT, ANNOTATION_REJECTED, LABEL_GPU_PRODUCT
from pagoda_contracts.resources.effect import not_built
from pagoda_contracts.resources.engine import EngineSpec
from pagoda_contracts.resources.placement import Accelerator
from pagoda_kernels.gpu.prefill_config import HEAD_DIMS
from pagoda_operator.api.state import CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, PROFILES, RESOURCE_CLAIM_TEMPLATES
from pagoda_operator.decide.placement import ask
from pagoda_placement.place import spare
from pagoda_sizing.families import parse_model
from pagoda_sizing.replica import FUSED_HEADS, Requirement, config_of, on_device
from support.harness.harness import Harness
from support.harness.inventories import (
    A100_80,
    CPU,
    H100,
    LLAMA8,
    TINY,
    cut,
    dra_of,
    gpu,
    inventory,
    mig,
    node,
    plain_node,
    pod,
    resource_slice,
    whole,
)
from support.harness.placing import ENGINE, MIXED, bind, config, harness, placement, template
from support.kube.fake_api import crashed, running


def test_whole_gpus_are_asked_for_on_the_nodes_that_have_them():
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)), node("b", A100_80, whole(8))))
    made.settle()
    spec = template(made)
    daemon = spec["containers"][0]
    assert (daemon["resources"]["requests"]["nvidia.com/gpu"], daemon["resources"]["limits"]) == ("1", {"nvidia.com/gpu": "1"})
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": LABEL_GPU_PRODUCT, "operator": "In", "values": ["NVIDIA-H100-80GB-HBM3"]}]
    assert (config(made).engine.device, config(made).engine.tensor_parallel) == ("cuda", None)


@pytest.mark.parametrize(("entry", "field"), [(gpu("H100", 4), "gpu.count"), (dra_of("gpu.nvidia.com", count=4), "dra.count")])
def test_more_devices_than_a_replica_can_use_are_refused_by_name(entry, field):
    made = harness(entry, there=(node("a", H100, whole(8)),))
    made.settle()
    assert (made.reason(), made.names(DEPLOYMENTS)) == ("NoAccelerator", [])
    assert f"{field} must be 1, got 4: a replica computes on one device" in made.conditions()["Stalled"]["message"]


def test_weights_that_no_daemon_has_on_a_device_are_refused_by_name():
    made = harness(gpu("H100"), CPU, there=(node("a", H100, whole(8)),))
    made.edit(engine=ENGINE | {"quantization": "nvfp4"})
    made.settle()
    assert placement(made)["rejected"][0]["why"] == "engine.quantization nvfp4 is not built; on devices, fp8, int8, int4 are"


@pytest.mark.parametrize(("quantization", "chosen"), [("int8", "gpu[0]"), ("fp8", "gpu[1]")])
def test_fp8_weights_go_to_a_device_that_has_fp8(quantization, chosen):
    made = harness(gpu("A100"), gpu("H100"), model=LLAMA8, there=(node("a", A100_80, whole(8)), node("h", H100, whole(8))))
    made.edit(engine=ENGINE | {"quantization": quantization})
    made.settle()
    assert placement(made)["chosen"] == chosen
    if chosen == "gpu[1]":
        assert "fp8 weights need compute capability 8.9, this device has 8.0" in placement(made)["rejected"][0]["why"]


def test_a_product_that_a_dra_driver_names_with_spaces_is_the_labels_product():
    piece = resource_slice("a", A100_80, whole(1))
    for device in piece["spec"]["devices"]:
        device["attributes"]["productName"] = {"string": "NVIDIA A100-SXM4-80GB"}
    made = harness(dra_of("gpu.nvidia.com"), model=LLAMA8, there=inventory(plain_node("a"), slices=(piece,)))
    made.edit(engine=ENGINE | {"quantization": "fp8"})
    made.settle()
    assert "fp8 weights need compute capability 8.9, this device has 8.0" in made.conditions()["Stalled"]["message"]


LONG = {"maxModelLen": 131072, "maxConcurrency": 64}


@pytest.mark.parametrize(
    ("kept", "engine", "entry", "why"),
    [
        ("float8", {}, CPU, "float8 is not built on CPU; use auto"),
        ("int8", {"dtype": "float32"}, gpu("H100"), "int8 is not built with engine.dtype float32"),
        ("int8", {"deterministic": True}, gpu("H100"), "int8 is not built with engine.deterministic"),
        ("float8", {}, gpu("H100"), None),
        ("bfloat16", {"deterministic": True}, CPU, None),
    ],
)
def test_where_keys_and_values_of_8_bits_are_not_built(kept, engine, entry, why):
    asked = EngineSpec.model_validate(engine | {"kvCache": {"dtype": kept}})
    found = not_built(asked, Accelerator.model_validate(entry))
    assert (found and found.message) == (why and f"engine.kvCache.dtype {why}")


@pytest.mark.parametrize(
    ("engine", "entry", "why"),
    [
        ({"deterministic": True}, gpu("H100"), "int8 is not built on devices with engine.deterministic"),
        ({"dtype": "float32"}, gpu("H100"), "int8 is not built on devices with engine.dtype float32"),
        ({"dtype": "float32"}, CPU, None),
        ({}, gpu("H100"), None),
    ],
)
def test_where_weights_of_8_bits_are_not_built(engine, entry, why):
    found = not_built(EngineSpec.model_validate(engine | {"quantization": "int8"}), Accelerator.model_validate(entry))
    assert (found and found.message) == (why and f"engine.quantization {why}")


def test_heads_that_no_kernel_knows_are_computed_with_16_bits_only():
    known = parse_model(config_of(LLAMA8))
    odd = replace(known, attention=replace(known.attention, query_dim=80))
    for engine, words in (
        ({}, ""),
        ({"quantization": "int8"}, "quantization int8 is not built for heads of 80"),
        ({"kvCache": {"dtype": "float8"}}, "kvCache.dtype float8 is not built for heads of 80"),
    ):
        assert on_device(Requirement(odd, EngineSpec.model_validate(engine)), 80 << 30).why == words
    assert FUSED_HEADS == HEAD_DIMS


def test_a_device_without_float8_is_refused_for_it_and_one_with_it_holds_more_requests():
    made = harness(gpu(), there=(node("a", A100_80, whole(8)), node("b", H100, whole(8))))
    made.edit(engine=LONG | {"kvCache": {"dtype": "float8"}})
    made.settle()
    bind(made)
    assert (placement(made)["device"].split(",")[0], placement(made)["concurrency"]) == (H100.product, 27)
    alone = harness(gpu("A100"), there=(node("a", A100_80, whole(8)),))
    alone.edit(engine=ENGINE | {"kvCache": {"dtype": "float8"}})
    alone.settle()
    assert "engine.kvCache.dtype float8 needs compute capability 8.9, this device has 8.0" in alone.conditions()["Stalled"]["message"]


@pytest.mark.parametrize(("budget", "tokens", "held"), [({}, 2048, 14), ({"tokenBudget": 512}, 512, 15)])
def test_max_concurrency_is_a_ceiling_and_what_fits_beside_a_step_is_told(budget, tokens, held):
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)),))
    made.edit(engine=LONG | budget)
    made.settle()
    bind(made)
    assert (made.reason(), placement(made)["concurrency"]) == ("Available", held)
    told = f"1 of 1 replicas ready; a replica's KV cache holds {held} of maxConcurrency 64 requests at 131,072 tokens"
    assert made.conditions()["Ready"]["message"] == told
    made.api.journal.clear()
    made.restart()
    made.settle()
    assert (made.api.journal, config(made).engine.max_concurrency, config(made).engine.token_budget) == ([], 64, tokens)


@pytest.mark.parametrize("demand", [{"engine": LONG | {"minConcurrency": 64}}, {"engine": LONG, "slo": {"ttft": "1s"}}])
def test_min_concurrency_and_slo_make_it_a_demand(demand):
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)),))
    made.edit(**demand)
    made.settle()
    assert made.reason() == "NoAccelerator"
    assert "for weights + 64 requests at 131,072 tokens, has 79.6 GiB" in made.conditions()["Stalled"]["message"]


def test_an_empty_slo_and_a_smaller_demand_are_met():
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)),))
    made.edit(engine=LONG | {"minConcurrency": 8}, slo={})
    made.settle()
    assert placement(made)["chosen"] == "gpu[0]"


def test_replicas_that_refuse_the_model_give_their_devices_back():
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)),), replicas=2)
    made.settle()
    for body in made.api.of(PODS):
        made.api.report(body, crashed(message="ConfigRejected: too large"))
    made.settle()
    (name,) = made.names(DEPLOYMENTS)
    assert (made.reason(), made.api.of(PODS), made.api.of(DEPLOYMENTS)[0]["spec"]["replicas"]) == ("ModelRejected", [], 0)
    message = made.conditions()["Stalled"]["message"]
    assert message.startswith("ConfigRejected: too large; its devices are given back; to try again, change the spec or delete Deployment")
    made.api.journal.clear()
    made.restart()
    made.settle()
    assert (made.api.journal, made.conditions()["Stalled"]["message"]) == ([], message)
    made.edit(engine=ENGINE | {"maxModelLen": 2048})
    made.settle()
    bind(made)
    assert (made.reason(), len(made.api.of(PODS)), name in made.names(DEPLOYMENTS)) == ("Available", 2, False)


def test_a_replica_that_refuses_alone_may_have_a_bad_node_and_takes_no_other_with_it():
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)),), replicas=2)
    made.settle()
    first, second = made.api.of(PODS)
    made.api.report(first, crashed(message="ConfigRejected: no CUDA device"))
    made.api.report(second, running())
    made.settle()
    assert made.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 2
    made.api.report(second, running(ready=True))
    made.settle()
    made.api.of(DEPLOYMENTS)[0]["metadata"]["annotations"][ANNOTATION_REJECTED] = "by hand"
    made.settle()
    assert made.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 2, "one serves"


@pytest.mark.parametrize("entries", [(CPU,), (gpu("H100"),)])
def test_replicas_on_cpu_and_those_that_served_once_try_again(entries):
    made = harness(*entries, there=(node("a", H100, whole(8)),))
    made.settle()
    if entries != (CPU,):
        bind(made)
    (body,) = made.api.of(PODS)
    made.api.report(body, crashed())
    made.settle()
    assert (made.reason(), len(made.api.of(PODS))) == ("ModelRejected", 1)


def test_the_rejected_deployment_is_made_again_if_a_person_deletes_it():
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)),))
    made.settle()
    made.api.report(made.api.of(PODS)[0], crashed())
    made.settle()
    del made.api.objects[(DEPLOYMENTS.kind, "ns", made.names(DEPLOYMENTS)[0])]
    made.settle()
    assert (made.reason(), len(made.api.of(PODS))) == ("Scheduling", 1)


def test_profile_s_node_affinity_applies_as_well():
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("x", "y")]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}}
    made = harness(gpu("H100"), there=(node("a", H100, whole(8)),))
    more = {"podTemplate": {"spec": {"affinity": affinity}}, "runtimeClassName": "nvidia"}
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(more))
    made.settle()
    spec = template(made)
    terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [[one["key"] for one in term["matchExpressions"]] for term in terms] == [["zone", LABEL_GPU_PRODUCT]] * 2
    assert spec["runtimeClassName"] == "nvidia"


def test_a_slice_under_strategy_single_is_asked_for_as_a_gpu_of_that_label():
    made = harness(mig("1g.10gb"), there=(node("a", A100_80, cut(8, p1g_10gb=7), strategy="single"),))
    made.settle()
    spec = template(made)
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"]


def test_the_smallest_slice_is_pinned_and_a_changed_inventory_rolls_nothing():
    made = harness(mig(least="1Gi"), there=inventory(MIXED, pods=(pod("a", mig_1g_10gb=4),)))
    made.settle()
    bind(made)
    assert template(made)["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-2g.20gb": "1"}
    assert placement(made)["rejected"] == [{"accelerator": "mig[0]", "why": "mig-1g.10gb: all 4 devices are in use"}]
    made.api.journal.clear()
    for there in (inventory(MIXED), inventory(), inventory(node("b", H100, whole(8)))):
        made.inventory = there
        made.restart()
        made.settle()
    assert made.api.journal == []
    assert made.reason() == "Available"


def test_another_profile_is_another_revision_and_the_same_one_is_not():
    small, large = harness(mig(least="1Gi"), there=(MIXED,)), harness(mig(least="15Gi"), there=(MIXED,))
    again = harness(mig(least="1Gi"), there=(MIXED, node("b", A100_80, whole(8))))
    taken = harness(mig(least="1Gi"), there=inventory(MIXED, pods=(pod("a", mig_1g_10gb=4),)))
    found = [made.plan().current.name for made in (small, large, again, taken)]
    assert found[0] == found[2]
    assert len(set(found)) == 3


def test_wait_for_devices_writes_nothing_and_survives_a_restart():
    made = harness(gpu("H100", fallbackAfter="5m"), CPU, there=inventory(node("a", H100, whole(8)), pods=(pod("a", gpu=8),)))
    made.settle()
    assert made.reason() == "WaitingForCapacity"
    assert (placement(made)["chosen"], placement(made)["waiting"]["since"]) == ("gpu[0]", "2026-01-01T00:00:00Z")
    assert "all 8 devices are in use" in made.conditions()["Reconciling"]["message"]
    made.api.journal.clear()
    for _ in range(4):
        made.tick()
        made.restart()
        made.run()
    assert made.api.journal == []
    assert made.run().again == 60
    made.tick()
    made.settle()
    assert (placement(made)["chosen"], "waiting" in placement(made)) == ("cpu[1]", False)
    assert placement(made)["rejected"] == [{"accelerator": "gpu[0]", "why": "NVIDIA-H100-80GB-HBM3: all 8 devices are in use"}]
    assert template(made)["containers"][0]["resources"]["requests"] == {"cpu": "8", "memory": "32Gi"}


def test_service_on_a_fallback_stays_until_its_list_is_edited():
    full = inventory(node("a", H100, whole(8)), pods=(pod("a", gpu=8),))
    made = harness(gpu("H100", fallbackAfter="0s"), CPU, there=full)
    made.settle()
    bind(made)
    made.inventory = inventory(node("a", H100, whole(8)))
    made.api.journal.clear()
    made.restart()
    made.settle()
    assert made.api.journal == []
    made.edit(replicas=2)
    made.settle()
    bind(made)
    assert placement(made)["chosen"] == "cpu[1]"
    made.edit(accelerators=[gpu("H100"), mig("1g.10gb"), CPU])
    made.settle()
    assert placement(made)["chosen"] == "gpu[0]"


def test_a_wait_that_ends_takes_the_first_choice():
    full = inventory(node("a", H100, whole(8)), pods=(pod("a", gpu=8),))
    made = harness(gpu("H100", fallbackAfter="5m"), CPU, there=full)
    made.settle()
    made.inventory = inventory(node("a", H100, whole(8)))
    made.settle()
    assert "waiting" not in placement(made)
    bind(made)
    made.later += timedelta(hours=1)
    made.settle()
    assert (placement(made)["chosen"], made.reason()) == ("gpu[0]", "Available")


def test_an_edited_entry_is_waited_for_anew():
    full = inventory(node("a", H100, whole(8)), node("b", A100_80, whole(8)), pods=(pod("a", gpu=8), pod("b", "o", gpu=8)))
    made = harness(gpu("H100", fallbackAfter="5m"), CPU, there=full)
    made.settle()
    made.later += timedelta(minutes=4)
    made.edit(accelerators=[gpu("A100", fallbackAfter="5m"), CPU])
    made.settle()
    assert placement(made)["waiting"]["since"] == "2026-01-01T00:04:00Z"
    made.later += timedelta(minutes=4)
    made.settle()
    assert placement(made)["chosen"] == "gpu[0]"


def test_new_revision_after_a_fallback_takes_a_free_first_choice_and_does_not_wait():
    full, empty = inventory(node("a", H100, whole(8)), pods=(pod("a", gpu=8),)), inventory(node("a", H100, whole(8)))
    for there, chosen in ((full, "cpu[1]"), (empty, "gpu[0]")):
        made = harness(gpu("H100", fallbackAfter="0s"), CPU, there=full)
        made.settle()
        bind(made)
        made.inventory = there
        made.edit(engine=ENGINE | {"maxConcurrency": 4}, accelerators=[gpu("H100", fallbackAfter="1h"), CPU])
        made.settle()
        assert (placement(made)["chosen"], "waiting" in placement(made)) == (chosen, False)


def test_what_waits_keeps_the_devices_it_was_rendered_for():
    full = inventory(node("a", H100, whole(8)), pods=(pod("a", gpu=8),))
    made = harness(gpu(), there=full)
    made.settle()
    made.api.journal.clear()
    made.inventory = inventory(node("a", H100, whole(8)), node("b", A100_80, whole(8)), pods=(pod("a", gpu=8), pod("b", "o", gpu=8)))
    made.settle()
    assert [kind for verb, kind, _ in made.api.journal if verb != "status"] == []


def test_a_service_that_an_older_operator_put_on_cpu_stays_there():
    made = harness(gpu("H100"), CPU)
    made.settle()
    bind(made)
    for body in made.api.of(CONFIG_MAPS):
        body["metadata"].get("annotations", {}).pop(ANNOTATION_PLACEMENT, None)
    made.inventory = inventory(node("a", H100, whole(8)))
    before = made.names(DEPLOYMENTS)
    made.settle()
    assert (made.names(DEPLOYMENTS), placement(made)["chosen"]) == (before, "cpu[1]")


def test_a_revision_on_claims_has_their_template_and_leaves_none_behind():
    sliced = node("a", H100, cut(1, p3g_40gb=1, p1g_10gb=2))
    piece = resource_slice("a", H100, cut(1, p3g_40gb=1, p1g_10gb=2))
    made = harness(dra_of("mig.nvidia.com", "device.driver == 'gpu.nvidia.com'"), there=inventory(sliced, slices=(piece,)))
    made.settle()
    (claims,) = made.api.of(RESOURCE_CLAIM_TEMPLATES)
    (request,) = claims["spec"]["spec"]["devices"]["requests"]
    expressions = [selector["cel"]["expression"] for selector in request["exactly"]["selectors"]]
    assert (request["exactly"]["deviceClassName"], request["exactly"]["count"]) == ("mig.nvidia.com", 1)
    assert expressions[0] == "device.driver == 'gpu.nvidia.com'"
    assert "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'" in expressions
    spec = template(made)
    assert spec["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": claims["metadata"]["name"]}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "devices"}]
    bind(made)
    made.edit(accelerators=[CPU])
    made.settle()
    bind(made)
    assert (made.names(RESOURCE_CLAIM_TEMPLATES), placement(made)["chosen"]) == ([], "cpu[0]")


def test_a_revision_on_claims_survives_the_loss_of_its_pin():
    sliced = node("a", H100, cut(1, p3g_40gb=1, p1g_10gb=2))
    made = harness(dra_of("mig.nvidia.com"), there=inventory(sliced, slices=(resource_slice("a", H100, cut(1, p3g_40gb=1, p1g_10gb=2)),)))
    made.settle()
    bind(made)
    before = (made.names(DEPLOYMENTS), made.names(RESOURCE_CLAIM_TEMPLATES), template(made))
    for key in [key for key in made.api.objects if key[0] == CONTROLLER_REVISIONS.kind]:
        del made.api.objects[key]
    made.settle()
    assert (made.names(DEPLOYMENTS), made.names(RESOURCE_CLAIM_TEMPLATES), template(made)) == before
    assert len(made.names(CONTROLLER_REVISIONS)) == 1


@pytest.mark.parametrize(("others", "room"), [(0, 1), (1, 0)])
def test_surge_room_excludes_places_of_the_service_s_own_pods(others, room):
    made = harness(gpu("H100"), there=(node("a", H100, whole(2)),))
    made.settle()
    observed = made.observed()
    mine = pod("a", "mine", uid=observed.meta.uid, gpu=1)
    made.inventory = inventory(node("a", H100, whole(2)), pods=(mine, *[pod("a", "other", gpu=1)] * others))
    question = ask(made.observed(), observed.spec)
    resolved = made.plan().placement.resolved
    assert spare(question, resolved, observed.spec.accelerators[0]) == room


@pytest.mark.parametrize(("gpus", "cordoned", "strategy"), [(2, False, "Surge"), (1, False, "Replace"), (1, True, "Surge")])
def test_rollout_surges_into_a_free_place_and_replaces_otherwise(gpus, cordoned, strategy):
    made = harness(gpu("H100"), there=(node("a", H100, whole(gpus)),))
    made.settle()
    bind(made)
    mine = pod("a", "mine", uid=made.observed().meta.uid, gpu=1)
    made.inventory = inventory(node("a", H100, whole(gpus), cordoned=cordoned), pods=(mine,))
    made.edit(engine=ENGINE | {"maxModelLen": 2048})
    made.run()
    assert made.plan().rollout.record.strategy == strategy


def test_a_published_model_needs_no_inspection():
    for uri in (LLAMA8, TINY):
        made = Harness(accelerators=[mig("3g.40gb")], engine=ENGINE, model={"uri": uri})
        made.inventory = inventory(MIXED)
        placed = made.plan().placement
        assert placed is not None
        assert (placed.undecided, placed.status.chosen) == (None, "mig[0]")
