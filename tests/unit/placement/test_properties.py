"""Inventories by chance: what is chosen fits by sizing, one slice is never several, order is kept, and nothing depends on chance."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_placement.place import place
from pagoda_sizing.devices import Device
from pagoda_sizing.errors import SizingError
from pagoda_sizing.fit import Demand, fit
from pagoda_sizing.platforms import matches
from support.harness.inventories import (
    A100_40,
    A100_80,
    B200,
    CPU,
    H100,
    H200,
    LLAMA8,
    LLAMA70,
    TINY,
    cut,
    gpu,
    inventory,
    mig,
    node,
    pod,
    question,
    spec,
    whole,
)

PARTS = {
    "h100": (H100, ({"p3g_40gb": 2}, {"p1g_10gb": 7}, {"p2g_20gb": 2, "p1g_10gb": 2})),
    "h200": (H200, ({"p3g_71gb": 2}, {"p1g_18gb": 7}, {"p1g_35gb": 2})),
    "b200": (B200, ({"p3g_90gb": 2}, {"p1g_23gb": 7})),
    "a100": (A100_80, ({"p3g_40gb": 2}, {"p1g_10gb": 7}, {"p1g_20gb": 3})),
    "a40": (A100_40, ({"p3g_20gb": 2}, {"p1g_5gb": 7}, {"p1g_5gbme": 1, "p1g_5gb": 6})),
}


@st.composite
def nodes(draw, number):
    product, cuts = PARTS[draw(st.sampled_from(sorted(PARTS)))]
    shape = draw(st.sampled_from(["whole", "mixed", "single", "stranded"]))
    count = draw(st.integers(1, 8))
    chosen = draw(st.sampled_from(cuts))
    more = {
        "cordoned": draw(st.booleans()) and draw(st.booleans()),
        "ready": draw(st.integers(0, 4)) > 0,
        "taints": draw(st.sampled_from([[], [], [], [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]])),
        "state": draw(st.sampled_from(["success", "success", "success", "pending", "failed"])),
        "cuda": draw(st.sampled_from(["13.0", "13.0", "13.2", "12.4"])),
    }
    if shape == "single" and len(chosen) > 1:
        shape = "mixed"
    groups = {
        "whole": (whole(count),),
        "mixed": (whole(count), cut(2, **chosen)),
        "single": (cut(count, **chosen),),
        "stranded": (cut(count),),
    }
    strategy = {"single": "single", "whole": "none"}.get(shape, "mixed")
    return node(f"n{number}", product, *groups[shape], strategy=strategy, **more)


PROFILES = ["3g.40gb", "1g.10gb", "1g.18gb", "1g.5gb+me", "3g.90gb"]
ENTRIES = st.one_of(
    st.builds(gpu, st.sampled_from([None, "H100", "A100", "B200"]), st.sampled_from([1, 1, 1, 2])),
    st.sampled_from(PROFILES).map(mig),
    st.sampled_from(["1Gi", "10Gi", "30Gi", "40Gi"]).map(lambda least: mig(least=least)),
)


@st.composite
def cases(draw):
    bodies = [draw(nodes(number)) for number in range(draw(st.integers(0, 4)))]
    pods = []
    for body in bodies:
        offered = {key: int(value) for key, value in body["status"]["allocatable"].items() if key.startswith("nvidia.com/")}
        for resource, count in offered.items():
            held = draw(st.integers(0, count))
            if held:
                name = resource.removeprefix("nvidia.com/")
                made = pod(body["metadata"]["name"], f"{body['metadata']['name']}-{len(pods)}", gpu=held)
                made["spec"]["containers"][0]["resources"] = {"requests": {f"nvidia.com/{name}": str(held)}}
                pods.append(made)
    entries = draw(st.lists(ENTRIES, min_size=1, max_size=4)) + draw(st.sampled_from([[], [CPU]]))
    patient = [entry | ({"fallbackAfter": "0s"} if draw(st.booleans()) else {}) for entry in entries]
    model, requests = draw(st.sampled_from([LLAMA8, LLAMA70, TINY])), draw(st.sampled_from([1, 8, 64]))
    return bodies, pods, spec(*patient, model=model, requests=requests)


def fits(asked, memory, count):
    """Sizing's word, asked without any code of the operator's."""
    device = Device("d", "d", memory, 1.0, {"bf16": 1.0}, 1.0, None, (), (), "")
    try:
        return (
            count == 1 and fit(asked.model.shape, device, Demand(asked.spec.engine.max_model_len, asked.spec.engine.max_concurrency)).fits
        )
    except SizingError:
        return False


def usable(body):
    labels, reported = body["metadata"]["labels"], body["spec"]
    ready = body["status"]["conditions"][0]["status"] == "True"
    version = (int(labels["nvidia.com/cuda.runtime-version.major"]), int(labels["nvidia.com/cuda.runtime-version.minor"]))
    state = labels.get("nvidia.com/mig.config.state", "success")
    return ready and not reported["unschedulable"] and not reported["taints"] and version >= (13, 0) and state == "success"


def ways(body, entry):
    """Resource, memory and count under which a node would serve an entry, read from its labels."""
    labels = body["metadata"]["labels"]
    product, _, single = labels["nvidia.com/gpu.product"].partition("-MIG-")
    for resource in body["status"]["allocatable"]:
        profile = resource.partition("mig-")[2] or (single if resource == "nvidia.com/gpu" else "")
        if not resource.startswith("nvidia.com/"):
            continue
        memory = int(labels[f"{resource}.memory"]) << 20
        if entry.gpu and not profile and matches(entry.gpu.product, product):
            yield resource, memory, entry.gpu.count
        if entry.mig and entry.mig.profile and profile == entry.mig.profile.replace("+", "."):
            yield resource, memory, 1
        if entry.mig and entry.mig.min_memory and profile and sold(profile) >= int(entry.mig.min_memory.removesuffix("Gi")):
            yield resource, memory, 1


def sold(profile):
    return int(profile.partition(".")[2].partition("gb")[0])


def free(body, pods, resource):
    name = body["metadata"]["name"]
    here = [one["spec"]["containers"][0]["resources"]["requests"] for one in pods if one["spec"]["nodeName"] == name]
    return int(body["status"]["allocatable"][resource]) - sum(int(one.get(resource, 0)) for one in here)


def can_run_now(asked, bodies, pods, entry):
    if entry.cpu:  # its 32 GiB hold any model that is drawn but the largest, and 64 requests of the smallest only
        return asked.spec.model.uri == TINY or (asked.spec.model.uri == LLAMA8 and asked.spec.engine.min_concurrency < 64)
    found = ((body, *way) for body in bodies if usable(body) for way in ways(body, entry))
    return any(free(body, pods, resource) >= count and fits(asked, memory, count) for body, resource, memory, count in found)


def lasting(body):
    """Nobody but a person ends it."""
    labels = body["metadata"]["labels"]
    old = int(labels["nvidia.com/cuda.runtime-version.major"]) < 13
    return old or bool(body["spec"]["taints"]) or labels.get("nvidia.com/mig.config.state") == "failed"


def can_ever_run(asked, bodies, entry):
    found = ((body, *way) for body in bodies if not lasting(body) for way in ways(body, entry))
    return any(int(body["status"]["capacity"][resource]) >= count and fits(asked, memory, count) for body, resource, memory, count in found)


@given(cases())
def test_what_is_chosen_fits_and_comes_first(case):
    bodies, pods, wanted = case
    asked = question(inventory(*bodies, pods=tuple(pods)), wanted)
    placed = place(asked)
    position = int(placed.status.chosen.partition("[")[2].rstrip("]")) if placed.status.chosen else len(wanted.accelerators)
    for entry in wanted.accelerators[:position]:
        assert not can_run_now(asked, bodies, pods, entry)
        assert entry.fallback_after or not can_ever_run(asked, bodies, entry)
    if placed.entry is None or placed.entry.cpu:
        return
    if placed.nodes:
        assert placed.status.waiting is not None
        assert not [way for body in bodies for way in ways(body, placed.entry)]
        return
    assert can_run_now(asked, bodies, pods, placed.entry) == (placed.status.waiting is None)
    everywhere = [(body, *way) for body in bodies for way in ways(body, placed.entry) if way[0] == placed.resolved.resource]
    mine = [way for way in everywhere if way[0]["metadata"]["labels"]["nvidia.com/gpu.product"] in placed.resolved.labels]
    assert mine
    assert all(fits(asked, memory, count) for _, _, memory, count in mine)
    assert not placed.resolved.profile or placed.entry.gpu is None


@given(cases())
def test_the_smallest_slice_that_is_free_is_taken(case):
    bodies, pods, wanted = case
    asked = question(inventory(*bodies, pods=tuple(pods)), wanted)
    placed = place(asked)
    if placed.entry is None or placed.entry.mig is None or placed.entry.mig.profile or placed.status.waiting:
        return
    found = [
        (memory, resource)
        for body in bodies
        if usable(body)
        for resource, memory, _ in ways(body, placed.entry)
        if free(body, pods, resource)
    ]
    smallest = min(memory for memory, _ in found if fits(asked, memory, 1))
    taken = [memory for body in bodies for resource, memory, _ in ways(body, placed.entry) if resource == placed.resolved.resource]
    assert smallest in taken


@pytest.mark.deep
@given(cases(), st.randoms(use_true_random=False))
def test_order_of_nodes_and_pods_decides_nothing(case, chance: random.Random):
    bodies, pods, wanted = case
    placed = place(question(inventory(*bodies, pods=tuple(pods)), wanted))
    chance.shuffle(bodies)
    chance.shuffle(pods)
    assert place(question(inventory(*bodies, pods=tuple(pods)), wanted)) == placed


@pytest.mark.deep
@given(cases())
def test_status_fits_the_schema_and_explains_each_entry_before_the_chosen_one(case):
    bodies, pods, wanted = case
    placed = place(question(inventory(*bodies, pods=tuple(pods)), wanted))
    status = placed.status.model_validate(placed.status.wire())
    assert status == placed.status
    position = int(status.chosen.partition("[")[2].rstrip("]")) if status.chosen else len(wanted.accelerators)
    reported = {rejected.accelerator for rejected in status.rejected}
    assert len(reported) >= position or "others" in reported
