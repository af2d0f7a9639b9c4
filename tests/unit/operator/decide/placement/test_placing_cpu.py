"""Services on CPU: a model that its own memory can never hold, nodes that have no room, and what is asked of a list for nothing."""

import json
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from pagoda_contracts.names import COMPONENT_INSPECT, EXIT_PERMANENT, LABEL_COMPONENT
from pagoda_contracts.resources.placement import CpuAccelerator
from pagoda_operator.api.errors import Denied, Refused
from pagoda_operator.api.state import DEPLOYMENTS, EVENTS, NODES, PODS, PROFILES
from pagoda_operator.watch.caches import Caches, InventoryView
from pagoda_placement.fit import largest, too_small
from pagoda_placement.nodes import parse_node
from pagoda_placement.options import options
from pagoda_sizing.replica import Judged
from support.harness.fake_scheduler import refuse
from support.harness.harness import Harness
from support.harness.inventories import CPU, H100, LLAMA8, gpu, inventory, node, plain_node, whole
from support.harness.placing import ENGINE, LLAMA_CONFIG, bind, inspected, placement, template

UNHEARD_OF = "hf://nobody/has-heard-of"
LACKS = "0/3 nodes are available: 3 Insufficient cpu."
EMPTY = inventory(node("a", H100, whole(8)))


def cores(count, memory="1Gi", **more):
    return {"cpu": {"cores": count, "memory": memory}, **more}


def harness(*accelerators, model="pvc://models/tiny", there=(), **spec):
    made = Harness(accelerators=list(accelerators), **{"engine": ENGINE, **spec}, model={"uri": model})
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(fetch="localhost/fetch:1"))
    made.inventory = inventory(*there) if isinstance(there, tuple) else there
    return made


def message(made, condition="Reconciling"):
    return made.conditions()[condition]["message"]


# The model against its own memory


def test_model_larger_than_the_memory_of_its_entry_stalls_without_a_pod():
    made = harness(cores("8", "1Gi"), model=LLAMA8)
    made.settle()
    assert made.reason() == "NoAccelerator"
    assert "cpu[0]: needs 16.0 GiB for weights + 1 request at 4,096 tokens, has 1.0 GiB" in message(made, "Stalled")
    assert placement(made)["rejected"][0]["accelerator"] == "cpu[0]"
    assert (made.api.of(DEPLOYMENTS), made.api.of(PODS)) == ([], [])
    made.edit(accelerators=[cores("8", "32Gi")])
    made.settle()
    bind(made)
    assert (made.reason(), placement(made)["rejected"]) == ("Available", [])


def test_entry_that_never_fits_on_cpu_is_passed_over():
    made = harness(cores("8", "1Gi"), gpu("H100"), model=LLAMA8, there=EMPTY)
    made.settle()
    assert (placement(made)["chosen"], placement(made)["rejected"][0]["accelerator"]) == ("gpu[1]", "cpu[0]")


@pytest.mark.parametrize(
    ("engine", "memory"),
    [
        ({"maxConcurrency": 64}, "17500Mi"),
        ({"maxConcurrency": 64, "maxModelLen": 2048}, "17500Mi"),
        ({"maxConcurrency": 64, "kvCache": {"memoryFraction": 0.1}}, "17500Mi"),
        ({"maxConcurrency": 64, "kvCache": {"size": "64Mi"}}, "17500Mi"),
        ({"quantization": "int8"}, "11Gi"),
    ],
)
def test_one_request_must_fit_not_max_concurrency(engine, memory):
    made = harness(cores("8", memory), model=LLAMA8, engine=engine)
    made.settle()
    assert (placement(made)["chosen"], made.reason()) == ("cpu[0]", "Scheduling")


@pytest.mark.parametrize(
    "engine", [{"maxModelLen": 4096, "minConcurrency": 32}, {"maxModelLen": 131_072}, {"kvCache": {"size": "20Gi"}}, {"dtype": "float32"}]
)
def test_more_requests_a_longer_one_a_larger_cache_and_wider_weights_need_more(engine):
    made = harness(cores("8", "24Gi"), model=LLAMA8, engine={"maxConcurrency": 64, **engine})
    made.settle()
    assert made.reason() == "NoAccelerator"


def test_running_service_is_not_judged_again(monkeypatch):
    made = harness(cores("8", "32Gi"), model=LLAMA8)
    made.settle()
    bind(made)
    made.api.journal.clear()
    monkeypatch.setattr("pagoda_placement.options.on_cpu", lambda *_: Judged("no"))
    made.restart()
    made.settle()
    assert (made.api.journal, made.reason()) == ([], "Available")


# Nodes that have no room


def test_shortage_of_cores_waits_with_a_pending_pod_and_a_reason():
    made = harness(cores("1000"))
    made.sizes = largest(parse_node(plain_node(name, count)) for name, count in (("a", "64"), ("b", "8")))
    made.settle()
    assert (len(made.api.of(PODS)), made.reason()) == (1, "Scheduling")
    refuse(made, words=LACKS)
    assert (made.reason(), made.conditions()["Stalled"]["status"]) == ("WaitingForCapacity", "False")
    assert "cpu[0] since " in message(made)
    assert f"finds no node: needs 1,000 cores on one node, but the largest node has 64 cores; {LACKS}" in message(made)
    assert (len(made.api.of(PODS)), placement(made)["chosen"], placement(made)["rejected"]) == (1, "cpu[0]", [])
    bind(made)
    assert (made.reason(), "waiting" in placement(made)) == ("Available", False)


def test_wait_on_cpu_writes_nothing_and_survives_a_restart():
    made = harness(CPU)
    made.settle()
    refuse(made, words=LACKS)
    assert LACKS in message(made)
    since = placement(made)["waiting"]["since"]
    made.api.journal.clear()
    for _ in range(3):
        made.tick()
        made.restart()
        made.run()
    assert (made.api.journal, placement(made)["waiting"]["since"]) == ([], since)


@pytest.mark.parametrize("words", ["no nodes available to schedule pods", "0/1 nodes are available: 1 Too many pods."])
def test_lack_of_nodes_or_pod_slots_is_waited_for_too(words):
    made = harness(CPU)
    made.settle()
    refuse(made, words=words)
    assert (made.reason(), words in message(made)) == ("WaitingForCapacity", True)


def test_a_missing_volume_is_no_lack_of_room():
    made = harness(CPU)
    made.settle()
    refuse(made, words='0/3 nodes are available: persistentvolumeclaim "models" not found.')
    assert (made.reason(), "waiting" in placement(made)) == ("Scheduling", False)


def test_service_scaled_from_zero_waits_for_the_node_added_for_its_pod():
    made = harness(CPU)
    made.settle()
    bind(made)
    made.edit(replicas=0)
    made.settle()
    made.restart()
    made.edit(replicas=1)
    made.settle()
    refuse(made, words=LACKS)
    assert (made.reason(), len(made.api.of(PODS))) == ("WaitingForCapacity", 1)


def test_cpu_entry_without_a_node_is_given_up_after_fallback_after():
    made = harness(CPU | {"fallbackAfter": "5m"}, cores("4", "16Gi"))
    made.settle()
    refuse(made, words=LACKS)
    assert (placement(made)["waiting"]["accelerator"], made.run().again) == ("cpu[0]", 300)
    made.later += timedelta(minutes=5)
    made.settle()
    assert template(made)["containers"][0]["resources"]["requests"]["cpu"] == "4"
    refuse(made, words=LACKS)
    assert (placement(made)["chosen"], made.reason()) == ("cpu[1]", "WaitingForCapacity")
    assert LACKS in placement(made)["rejected"][0]["why"]
    bind(made)
    assert (placement(made)["chosen"], made.reason()) == ("cpu[1]", "Available")


def test_given_up_entry_is_not_tried_again_during_an_inspection():
    entries = CPU | {"fallbackAfter": "5m"}, cores("4", "16Gi", fallbackAfter="5m"), gpu("H100")
    made = harness(*entries, model="pvc://models/unheard-of", there=EMPTY)
    made.settle()
    for _ in range(2):
        refuse(made, words=LACKS)
        made.later += timedelta(minutes=5, seconds=1)
        made.settle()
    assert (made.reason(), len(inspections(made))) == ("InspectingModel", 1)
    assert [one["accelerator"] for one in placement(made)["rejected"]] == ["cpu[0]", "cpu[1]"]
    made.api.journal.clear()
    for _ in range(3):
        made.restart()
        made.later += timedelta(minutes=5)
        made.settle()
    assert (made.api.journal, made.reason()) == ([], "InspectingModel")
    inspected(made)
    made.settle()
    assert placement(made)["chosen"] == "gpu[2]"


@pytest.mark.parametrize(
    ("reason", "words"), [("SchedulerError", "timeout"), ("Unschedulable", "0/3 nodes are available: 3 node(s) were unschedulable.")]
)
def test_changed_scheduler_message_does_not_restart_a_wait(reason, words):
    made = harness(CPU | {"fallbackAfter": "5m"}, cores("4", "16Gi"))
    made.settle()
    refuse(made, words=LACKS)
    since = placement(made)["waiting"]["since"]
    made.later += timedelta(minutes=4)
    say(made, reason, words)
    assert (made.reason(), placement(made)["waiting"]["since"]) == ("WaitingForCapacity", since)
    say(made, "Unschedulable", LACKS)
    made.later += timedelta(minutes=2)
    made.settle()
    assert placement(made)["chosen"] == "cpu[1]"


def say(made, reason, words):
    """The verdict on each pod, whatever it was before."""
    for body in made.api.of(PODS):
        body["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": reason, "message": words}]
    made.settle()


def test_a_rollout_on_a_full_cluster_waits_for_its_own_old_replicas_and_leaves_no_entry_for_them():
    made = harness(CPU | {"fallbackAfter": "1m"}, cores("4", "16Gi"), replicas=2)
    made.settle()
    bind(made)
    for body in made.api.of(PODS):
        body["spec"] = body.get("spec", {}) | {"nodeName": "a"}
    made.edit(engine={"maxModelLen": 128})
    made.settle()
    refuse(made, words=LACKS)
    made.later += timedelta(seconds=50)
    made.settle()
    made.later += timedelta(seconds=50)
    made.settle()
    assert placement(made)["chosen"] == "cpu[0]"


def test_additional_replica_without_a_node_moves_no_service():
    made = harness(CPU | {"fallbackAfter": "1m"}, cores("4"), replicas=1)
    made.settle()
    bind(made)
    made.edit(replicas=2)
    made.settle()
    refuse(made, words=LACKS)
    made.later += timedelta(hours=1)
    made.settle()
    assert (placement(made)["chosen"], made.reason()) == ("cpu[0]", "Scheduling")


# What is asked for nothing


def inspections(made):
    """Pods that read a model."""
    metas = [body["metadata"] for body in made.api.of(PODS)]
    return [meta["name"] for meta in metas if meta["labels"].get(LABEL_COMPONENT) == COMPONENT_INSPECT]


@pytest.mark.parametrize("entries", [[CPU], [CPU, gpu("H100")], [CPU | {"fallbackAfter": "5m"}, gpu("H100")]])
@pytest.mark.parametrize("model", ["pvc://models/tiny", LLAMA8])
def test_service_on_cpu_is_not_inspected_if_nothing_is_fetched_or_the_model_is_published(entries, model):
    made = harness(*entries, model=model, there=EMPTY)
    made.settle()
    assert (inspections(made), placement(made)["chosen"], made.reason()) == ([], "cpu[0]", "Scheduling")
    refuse(made, words=LACKS)
    assert (inspections(made), made.reason()) == ([], "WaitingForCapacity")


def test_entries_after_an_endless_wait_on_cpu_are_not_judged(monkeypatch):
    asked = []
    monkeypatch.setattr("pagoda_placement.place.options", lambda entry, demand: asked.append(entry) or options(entry, demand))
    made = harness(CPU, gpu("H100"), there=EMPTY)
    made.run()
    assert asked
    assert all(one.cpu is not None for one in asked)


def test_service_that_falls_back_from_cpu_to_devices_is_inspected_then():
    made = harness(CPU | {"fallbackAfter": "5m"}, gpu("H100"), model="pvc://models/unheard-of", there=EMPTY)
    made.settle()
    refuse(made, words=LACKS)
    since = placement(made)["waiting"]["since"]
    made.later += timedelta(minutes=5)
    made.settle()
    assert (len(inspections(made)), made.reason(), placement(made)["waiting"]["since"]) == (1, "InspectingModel", since)
    assert len(made.api.of(DEPLOYMENTS)) == 1
    inspected(made)
    made.settle()
    assert placement(made)["chosen"] == "gpu[1]"


def test_device_changes_do_not_requeue_a_service_that_waits_for_cores():
    reported = []
    made = harness(CPU)
    made.settle()
    refuse(made, words=LACKS)
    triggers = SimpleNamespace(waits=lambda _key, *, waiting: reported.append(waiting))
    made.operator._dependencies = replace(made.operator._dependencies, triggers=triggers)
    made.run()
    assert reported == [False]


# A model that is fetched is inspected before


def report(made, code=0, message=""):
    """How the inspecting container ended."""
    (pod,) = [body for body in made.api.of(PODS) if body["metadata"]["labels"].get(LABEL_COMPONENT) == COMPONENT_INSPECT]
    ended = {"terminated": {"exitCode": code, "message": message}}
    pod["status"] = {"containerStatuses": [{"name": "inspect", **({"lastState": ended, "state": {}} if code else {"state": ended})}]}
    made.settle()


def unheard_of(*entries, **spec):
    made = harness(*(entries or [CPU]), model=UNHEARD_OF, there=EMPTY, **spec)
    made.settle()
    return made


@pytest.mark.parametrize("entries", [[CPU], [CPU, gpu("H100")], [gpu("L40S"), CPU]])
def test_a_model_is_inspected_before_it_is_fetched_on_cpu(entries):
    made = unheard_of(*entries)
    assert (made.reason(), made.names(DEPLOYMENTS), len(inspections(made))) == ("InspectingModel", [], 1)
    assert message(made).endswith("; waiting since 2026-01-01T00:00:00Z; at 2026-01-01T00:02:00Z the replicas start without it")
    report(made, message=json.dumps({"config": LLAMA_CONFIG, "bytes": 3 << 30}))
    assert (inspections(made), placement(made)["chosen"][:3], made.reason()) == ([], "cpu", "Scheduling")
    assert template(made)["containers"][0]["resources"]["requests"]["ephemeral-storage"] == "4096Mi"


@pytest.mark.parametrize(
    ("config", "memory", "reason", "says"),
    [
        ({"model_type": "novel"}, "32Gi", "ModelRejected", "no daemon serves this model: model_type 'novel' is not served"),
        ({"auto_map": True}, "32Gi", "ModelRejected", "config.json has auto_map"),
        ({"quantization_config": {"quant_method": "eetq"}}, "32Gi", "ModelRejected", "weights stored as 'eetq' are not served"),
        ({"head_dim": 63}, "32Gi", "ModelRejected", "head_dim 63 is odd"),
        ({}, "2Gi", "NoAccelerator", "cpu[0]: needs 2.8 GiB for weights + 1 request at 4,096 tokens, has 2.0 GiB"),
    ],
)
def test_what_cannot_be_served_on_cpu_is_refused_before_a_pod_fetches_it(config, memory, reason, says):
    made = unheard_of(cores("8", memory))
    report(made, message=json.dumps({"config": LLAMA_CONFIG | config}))
    assert (made.reason(), made.names(DEPLOYMENTS), made.api.of(PODS)) == (reason, [], [])
    assert says in message(made, "Stalled")


def test_an_entry_on_cpu_that_is_too_small_for_an_inspected_model_is_passed_over():
    made = unheard_of(cores("8", "2Gi"), gpu("H100"))
    report(made, message=json.dumps({"config": LLAMA_CONFIG}))
    assert (placement(made)["chosen"], placement(made)["rejected"][0]["accelerator"]) == ("gpu[1]", "cpu[0]")


def test_an_inspection_without_an_answer_keeps_no_service_on_cpu_from_its_start():
    made = unheard_of()
    report(made, 1, "Unreachable: huggingface.co: no route to host")
    assert (made.names(DEPLOYMENTS), made.run().again) == ([], 120.0)
    assert "will be repeated: Unreachable" in message(made)
    made.later += timedelta(seconds=119)
    made.settle()
    assert made.names(DEPLOYMENTS) == []
    made.later += timedelta(seconds=1)
    made.settle()
    assert (inspections(made), placement(made)["chosen"], made.reason()) == ([], "cpu[0]", "Scheduling")
    made.api.journal.clear()
    made.restart()
    made.settle()
    assert made.api.journal == []


@pytest.mark.parametrize(("code", "words"), [(EXIT_PERMANENT, "NotFound: nobody/has-heard-of"), (0, "killed")])
def test_a_refused_inspection_leaves_the_word_on_cpu_to_the_sidecar(code, words):
    """It may be told of another hub than the pod, by the service's podTemplate."""
    made = unheard_of()
    report(made, code, words)
    assert (inspections(made), placement(made)["chosen"], made.reason()) == ([], "cpu[0]", "Scheduling")


@pytest.mark.parametrize("refusal", [Denied("403: pods is forbidden: exceeded quota"), Refused("422: exceeded quota")])
def test_an_inspection_that_the_api_server_refuses_keeps_no_service_on_cpu_from_its_start(refusal):
    made = harness(CPU, model=UNHEARD_OF)
    made.api.refuse["Pod"] = refusal
    made.settle()
    assert (inspections(made), placement(made)["chosen"], made.reason()) == ([], "cpu[0]", "Scheduling")
    (said,) = [event["note"] for event in made.api.of(EVENTS) if event["reason"] == "Forbidden"]
    assert "the model is not inspected, and only an entry on CPU starts without that: 4" in said
    assert "exceeded quota" in said
    del made.api.refuse["Pod"]
    made.api.journal.clear()
    made.restart()
    made.settle()
    assert made.api.journal == []


def test_a_refused_inspection_is_tried_again_for_devices_and_after_an_edit():
    made = harness(gpu("H100"), model=UNHEARD_OF, there=EMPTY)
    made.api.refuse["Pod"] = Denied("403: exceeded quota")
    for _ in range(2):
        with pytest.raises(Denied):
            made.settle()
        assert (made.reason(), made.names(DEPLOYMENTS), "exceeded quota" in message(made)) == ("Forbidden", [], True)
    del made.api.refuse["Pod"]
    made.edit(accelerators=[CPU])
    made.settle()
    assert (made.reason(), len(inspections(made))) == ("InspectingModel", 1)


def test_what_an_operator_before_placed_on_cpu_waits_for_no_inspection(monkeypatch):
    """Nor does it get another revision, whether it serves, starts, sleeps, wakes or lost its Deployment."""
    with monkeypatch.context() as before:
        before.setattr("pagoda_placement.place._must_know", lambda *_: None)
        made = unheard_of()
    (name,) = made.names(DEPLOYMENTS)
    for step in (
        made.restart,
        lambda: bind(made),
        lambda: made.edit(replicas=0),
        lambda: made.edit(replicas=1),
        lambda: made.api.objects.pop((DEPLOYMENTS.kind, "ns", name)),
    ):
        step()
        made.settle()
        assert (inspections(made), made.names(DEPLOYMENTS)) == ([], [name])


def test_another_model_on_cpu_is_not_waited_for_while_the_old_one_serves():
    made = unheard_of()
    report(made, message=json.dumps({"config": LLAMA_CONFIG}))
    bind(made)
    before = made.names(DEPLOYMENTS)
    made.edit(model={"uri": "hf://nobody/has-heard-of-this"})
    made.settle()
    made.edit(replicas=3)
    made.settle()
    assert (inspections(made), len(made.names(DEPLOYMENTS)), set(before) < set(made.names(DEPLOYMENTS))) == ([], 2, True)
    assert "continues to serve" in message(made)


# The largest nodes


def sizes(*nodes):
    return largest(parse_node(plain_node(str(number), *size)) for number, size in enumerate(nodes))


def cpu(count, memory):
    return CpuAccelerator(cores=count, memory=memory)


@pytest.mark.parametrize(
    ("there", "asked", "reported"),
    [
        (sizes(("64", "512Gi")), cpu("64", "512Gi"), ""),
        (sizes(("64", "512Gi")), cpu("65", "1Gi"), "needs 65 cores on one node, but the largest node has 64 cores"),
        (sizes(("8", "512Gi")), cpu("8050m", "1Gi"), "needs 8.1 cores on one node, but the largest node has 8 cores"),
        (sizes(("7910m", "512Gi")), cpu("7920m", "1Gi"), "needs 8 cores on one node, but the largest node has 7.9 cores"),
        (sizes(("1", "512Gi")), cpu("1500m", "1Gi"), "needs 1.5 cores on one node, but the largest node has 1 core"),
        (sizes(("64", "16431208Ki")), cpu("1", "16Gi"), "needs 16.0 GiB on one node, but the largest node has 15.6 GiB"),
        (sizes(("64", "16Gi"), ("4", "512Gi")), cpu("8", "32Gi"), "needs 8 cores and 32.0 GiB on one node, but no node has both"),
        (sizes((None, None)), cpu("8", "32Gi"), ""),
        ((), cpu("8", "32Gi"), ""),
    ],
)
def test_node_sizes_are_reported_in_round_numbers(there, asked, reported):
    assert too_small(there, asked) == reported


def test_a_thousand_nodes_are_summarised_once_in_a_few_sizes():
    caches = Caches()
    view = InventoryView(caches)
    for number in range(1000):
        caches.event(NODES, plain_node(f"n{number}", str(1 + number % 64), f"{1 + number % 32}Gi"), gone=False)
    found = view.sizes()
    assert found == ((64_000, 32 << 30),)
    assert view.sizes() is found
    caches.event(NODES, plain_node("large", "128", "1Gi"), gone=False)
    assert view.sizes() == ((128_000, 1 << 30), (64_000, 32 << 30))
