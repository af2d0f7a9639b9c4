"""Requests between revisions: shares are exact early, and a revision that can take nothing loses nothing."""

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, LABEL_REVISION
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_gateway.shares import draw, order
from pagoda_gateway.watch import PodObject, ServiceObject
from support.servers.gateway_process import write_fleet

WEIGHTS = st.integers(0, 100).map(lambda percent: (("old", 100 - percent), ("new", percent)))


@given(WEIGHTS, st.integers(0, 10_000), st.integers(1, 1_000))
def test_of_any_requests_in_a_row_each_revision_gets_its_share(weights, start, count):
    chosen = [order(weights, draw(start + n))[0] for n in range(count)]
    for revision, percent in weights:
        assert abs(chosen.count(revision) - count * percent / 100) <= 3.5


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 100)), min_size=1, unique_by=lambda w: w[0]),
    st.floats(0, 1, exclude_max=True),
)
def test_every_revision_is_asked_once_and_the_heavier_first_after_the_chosen(weights, point):
    asked = order(weights, point)
    assert sorted(asked) == sorted(revision for revision, _ in weights)
    rest = [dict(weights)[revision] for revision in asked[1:]]
    assert rest == sorted(rest, reverse=True)


@given(WEIGHTS, st.floats(0, 1, exclude_max=True))
def test_a_revision_without_a_share_is_never_the_first(weights, point):
    first = order(weights, point)[0]
    assert dict(weights)[first] > 0


async def test_requests_are_split_by_weight_and_a_revision_that_can_take_none_loses_none(bench, replicas):
    old, new = replicas
    old.say(revision="old")
    new.say(revision="new")
    await bench.serve(old, new)
    weights = {"weights": {"old": 75, "new": 25}, "endpoints": [old.entry(), new.entry()]}
    write_fleet(bench.file, [{"name": bench.service, "served_names": ["m"], **weights}])
    await eventually_split(bench, new.name)
    answers = [(await bench.ask())[1]["replica"] for _ in range(40)]
    assert 8 <= answers.count(new.name) <= 12
    new.say(phase=Phase.PHASE_DRAINING, revision="new")
    await bench.sees(draining=1)
    assert {(await bench.ask())[1]["replica"] for _ in range(10)} == {old.name}


async def eventually_split(bench, rare):
    """The file is read again some time after it was written: until then equals take turns, and half of ten go to each."""
    async with asyncio.timeout(120):
        while [(await bench.ask())[1]["replica"] for _ in range(10)].count(rare) >= 4:
            pass


def test_a_services_status_tells_the_weights_and_a_pods_annotation_that_its_device_is_faulty():
    revisions = [{"hash": "a", "replicas": 1, "readyReplicas": 1, "weight": 90}, {"hash": "b", "weight": 0}, {"hash": "c"}]
    body = {"metadata": {"name": "s", "namespace": "ns"}, "status": {"revisions": revisions}}
    assert msgspec.convert(body, ServiceObject).parsed().weights == (("a", 90), ("b", 0))
    meta = {"name": "p", "namespace": "ns", "labels": {LABEL_REVISION: "a"}, "annotations": {ANNOTATION_DEVICE_FAULT: "Xid 79"}}
    member = msgspec.convert({"metadata": meta, "status": {"podIP": "10.0.0.1"}}, PodObject).parsed()
    assert (member.revision, member.sick) == ("a", "Xid 79")
