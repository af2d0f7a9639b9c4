"""Planning from what the watches have shown: free at rest, and never wrong where they are late, empty or out of order."""

import asyncio
import contextlib
import copy
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pagoda_contracts.names import LABEL_SERVICE
from pagoda_operator.api.errors import Denied, OperatorError
from pagoda_operator.api.pods import parse_pod
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, DISRUPTION_BUDGETS, NODES, PODS, PROFILES, QUOTAS, SERVICES, Key
from pagoda_operator.decide.plan import plan
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.senses import Senses
from pagoda_operator.run.settings import Settings
from pagoda_operator.run.turns import EVERY_S, Turns
from pagoda_operator.serve.probes import MAX_WATCH_AGE, Vitals
from pagoda_operator.watch import mirror
from pagoda_operator.watch.check import Check, Shown
from pagoda_operator.watch.claims import Claims
from pagoda_operator.watch.door import Door, Stand
from pagoda_operator.watch.floors import EXPECTED
from pagoda_operator.watch.mirror import MIRRORED, Mirror
from pagoda_operator.watch.observe import observe
from pagoda_operator.watch.silence import LOOKS, PATIENCE, Silences
from pagoda_operator.watch.world import World as Whole
from support.kube.fake_api import profile_body, service_body
from support.suite.profiles import examples
from support.worlds.mirrored import Clock, Mirrored, get_ready
from support.worlds.world import KEY, now


@pytest.fixture
def world():
    made = Mirrored()
    made.settle()
    made.make_ready()
    return made


def test_at_rest_a_run_costs_no_request(world):
    assert world.reason() == "Available"
    world.restart()
    world.show()
    world.run()  # the claims of all services are read once per process
    reads, written = world.api.reads, len(world.api.journal)
    for _ in range(20):
        world.run()
    assert (world.api.reads, len(world.api.journal)) == (reads, written)


def test_the_first_look_of_a_process_at_a_service_is_at_the_truth_whatever_was_shown(world):
    world.restart()
    world.show()
    before = world.api.reads
    world.run()
    assert world.api.reads >= before + len(MIRRORED)


def test_a_word_of_an_edited_profile_has_its_turn_and_costs_nothing_before(world):
    clock, spec = Clock(), {"images": {"daemon": "localhost/daemon:2"}}
    turns = Turns(clock)
    world.operator._senses = replace(world.operator._senses, turns=turns)
    assert [turns.wait(Key("ns", other)) for other in ("a", "b", "c", "d")] == [0.0, EVERY_S, 2 * EVERY_S, 3 * EVERY_S]
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(spec))
    world.show()
    reads, written = world.api.reads, len(world.api.journal)
    assert [world.run().again for _ in range(3)] == [4 * EVERY_S] * 3
    assert (world.api.reads, len(world.api.journal)) == (reads, written)
    clock.now = 4 * EVERY_S
    world.run()
    assert world.api.journal[written:] == [("status", SERVICES.kind, KEY.name)]
    world.show()
    world.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(args=["--x"]))
    world.edit(replicas=2)
    world.show()
    world.run()  # what moves something waits for no turn
    assert ("apply", DEPLOYMENTS.kind) in {entry[:2] for entry in world.api.journal[written:]}


def test_a_restart_on_empty_mirrors_writes_nothing(world):
    no_pods = tuple(resource for resource in MIRRORED if resource != PODS)
    for shown in [(SERVICES,), (SERVICES, PROFILES), (SERVICES, PROFILES, DEPLOYMENTS), (SERVICES, PODS), (PODS, DEPLOYMENTS), no_pods]:
        world.restart()
        world.show(*shown)
        written = len(world.api.journal)
        for _ in range(3):
            world.run()
        assert world.api.journal[written:] == [], shown


def test_a_scale_down_and_a_deletion_are_planned_from_what_is_not_from_what_was_shown(world):
    world.edit(replicas=3)
    world.settle()
    world.make_ready()
    world.edit(replicas=1)
    world.show()
    world.edit(replicas=3)  # nobody has shown this yet
    written = len(world.api.journal)
    world.run()
    assert [entry for entry in world.api.journal[written:] if entry[0] == "apply"] == []
    assert world.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] == 3


def test_our_own_write_is_known_at_once_and_older_news_of_it_is_not_believed_for_a_while(world):
    (before,) = copy.deepcopy(world.api.of(DEPLOYMENTS))
    world.edit(replicas=2)
    world.show(SERVICES)
    world.run()
    written = len(world.api.journal)
    assert not world.mirror.put(DEPLOYMENTS, before)  # the event that was on its way
    world.run()
    assert [entry for entry in world.api.journal[written:] if entry[1] == "Deployment"] == []
    world.clock.now += EXPECTED + 1
    assert world.mirror.put(DEPLOYMENTS, before)  # a restored etcd: versions go back


def test_a_look_at_the_truth_packs_only_what_is_not_known_already(world, monkeypatch):
    packed, pack = [], mirror._packed
    monkeypatch.setattr(mirror, "_packed", lambda resource, body: packed.append(resource) or pack(resource, body))
    deployment = world.names(DEPLOYMENTS)[0]
    world.api.edit(DEPLOYMENTS, "ns", deployment, lambda body: body["metadata"].setdefault("annotations", {}).update(noted="by a person"))
    asyncio.run(observe(world.mirror.learning(world.api), KEY))
    assert packed == [DEPLOYMENTS]
    (known,) = asyncio.run(world.mirror.list(DEPLOYMENTS, "ns", f"{LABEL_SERVICE}=tiny"))
    assert known["metadata"]["annotations"]["noted"] == "by a person"


def test_a_deleted_child_does_not_come_back_by_an_old_event(world):
    (body,) = copy.deepcopy(world.api.of(CONFIG_MAPS))
    world.mirror.wrote(CONFIG_MAPS, "delete", {"metadata": body["metadata"]})
    assert not world.mirror.put(CONFIG_MAPS, body)
    assert world.mirror.versions(CONFIG_MAPS) == {}


def test_an_answer_that_an_event_overtook_hides_neither_an_edit_nor_a_pod_that_ends(world):
    (answer,) = copy.deepcopy(world.api.of(SERVICES))
    world.api.edit(SERVICES, "ns", KEY.name, lambda body: body["metadata"].update(generation=7))
    world.show(SERVICES)
    world.mirror.wrote(SERVICES, "patch", answer)
    assert asyncio.run(world.mirror.get(SERVICES, *KEY))["metadata"]["generation"] == 7
    pod = copy.deepcopy(world.api.of(PODS)[0])
    name = pod["metadata"]["name"]
    world.api.edit(PODS, "ns", name, lambda body: body["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    world.show(PODS)
    world.mirror.wrote(PODS, "delete", {"metadata": pod["metadata"]})
    assert "deletionTimestamp" in asyncio.run(world.mirror.get(PODS, "ns", name))["metadata"]


def tell_while_read(world, tell):
    """A quorum list that was answered before, and arrives after, what the watches tell."""
    answer = world.api.list

    async def late(resource, namespace, selector):
        bodies = await answer(resource, namespace, selector)
        tell()
        return bodies

    world.api.list = late
    asyncio.run(world.mirror.learning(world.api).list(PODS, KEY.namespace, f"{LABEL_SERVICE}={KEY.name}"))
    world.api.list = answer


def test_a_pod_that_went_while_it_was_read_is_not_learned_again(world):
    (pod,) = world.live(PODS)
    end = pod | {"metadata": pod["metadata"] | {"resourceVersion": "99999"}}
    tell_while_read(world, lambda: world.mirror.drop(PODS, end))
    assert world.mirror.versions(PODS) == {}


def test_a_pod_that_came_while_a_list_was_read_stays(world):
    (pod,) = world.live(PODS)
    new = pod | {"metadata": pod["metadata"] | {"name": "new", "uid": "new", "resourceVersion": "99999"}}
    tell_while_read(world, lambda: world.mirror.put(PODS, new))
    assert set(world.mirror.versions(PODS)) == {Key("ns", "new"), Key("ns", pod["metadata"]["name"])}


def test_the_end_of_an_earlier_pod_of_that_name_does_not_hide_the_one_that_was_read(world):
    (pod,) = world.live(PODS)
    end = pod | {"metadata": pod["metadata"] | {"resourceVersion": "1"}}
    tell_while_read(world, lambda: world.mirror.drop(PODS, end))
    assert set(world.mirror.versions(PODS)) == {Key("ns", pod["metadata"]["name"])}


def claimed(world, key, name):
    """Another service, older than ours, that claims the same name as ours by its own."""
    older = service_body(key.name, model={"uri": "hf://a/b", "servedNames": [name]})
    older["metadata"] |= {"creationTimestamp": "2020-01-01T00:00:00Z"}
    return world.api.put(SERVICES, older)


@pytest.mark.parametrize("end", ["deleted", "renamed"])
def test_a_name_is_free_for_the_next_though_no_event_told_that_its_holder_gave_it_up(world, end):
    woken = Woken()
    claims, holder = Claims(woken.add), Key("ns", "older")
    world.operator = Reconciler(world.api, Settings(), now, Senses(view=world.mirror, claims=claims))
    claims.put(claimed(world, holder, "tiny"))
    world.api.edit(SERVICES, *KEY, lambda body: body["status"].pop("servedNames"))  # else it keeps what it has
    world.settle()
    asyncio.run(world.operator.reconcile(holder))
    world.settle()
    assert world.reason() == "NameConflict"
    if end == "deleted":
        del world.api.objects["InferenceService", "ns", "older"]
    else:
        world.api.edit(SERVICES, "ns", "older", lambda body: body["spec"]["model"].update(servedNames=["another"]))
    woken.clear()
    check, _, found = checked(world)
    asyncio.run(check.once())
    for key in set(found):
        asyncio.run(world.operator.reconcile(key))
    assert KEY in woken
    world.settle()
    assert world.reason() == "Available"


def test_a_service_that_is_gone_waits_for_nothing_though_no_event_told_of_its_end(world):
    told = []
    world.operator = Reconciler(world.api, Settings(), now, Senses(waits=lambda key, *, waiting: told.append((key, waiting))))
    del world.api.objects["InferenceService", "ns", "tiny"]
    world.run()
    assert told == [(KEY, False)]


class Counted(float):
    """Seconds that count how often a time is compared with them."""

    looks = 0

    def __add__(self, other):
        return Counted(float(self) + other)

    def __gt__(self, other):
        Counted.looks += 1
        return float(self) > float(other)


def test_what_is_expected_is_swept_a_few_times_and_not_at_each_look(monkeypatch):
    monkeypatch.setattr(Counted, "looks", 0)
    clock = Clock()
    mirror = Mirror(clock)

    def learn(first, last):
        for number in range(first, last):
            mirror.learn(PODS, {"metadata": {"namespace": "ns", "name": f"pod-{number}", "resourceVersion": "7"}})

    clock.now = Counted(0.0)
    learn(0, 3000)
    assert 0 < Counted.looks <= 3 * 3000
    clock.now = Counted(EXPECTED + 1)
    learn(3000, 6000)
    assert len(mirror._floors) <= 3000


def test_a_status_from_a_late_view_ends_in_a_conflict_and_then_in_the_truth(world):
    for pod in world.api.of(PODS):
        pod["status"] = {}
        world.api._touch(pod)
    world.show()
    world.api.edit(SERVICES, "ns", "tiny", lambda body: body["metadata"].setdefault("annotations", {}).update(a="b"))
    world.run()
    assert world.conditions()["Ready"]["status"] == "False"


def test_noise_in_an_object_is_no_news(world):
    (pod,) = world.live(PODS)
    pod["metadata"] |= {"resourceVersion": "99999", "managedFields": [{"manager": "kubelet"}]}
    pod["status"]["containerStatuses"][0] |= {"imageID": "sha256:1", "containerID": "containerd://1"}
    assert not world.mirror.put(PODS, pod)
    pod["status"]["podIP"] = "10.0.0.1"
    assert world.mirror.put(PODS, pod)


def test_what_a_budget_says_of_itself_is_no_news_and_its_spec_is(world):
    (budget,) = world.live(DISRUPTION_BUDGETS)
    budget["metadata"]["resourceVersion"] = "99998"
    budget["status"] = {"currentHealthy": 2, "desiredHealthy": 1}
    assert not world.mirror.put(DISRUPTION_BUDGETS, budget)
    budget["metadata"]["resourceVersion"] = "99999"
    budget["spec"]["maxUnavailable"] = 2
    assert world.mirror.put(DISRUPTION_BUDGETS, budget)


def test_the_mirror_lists_by_service_only(world):
    with pytest.raises(ValueError, match="app=x"):
        asyncio.run(world.mirror.list(PODS, "ns", "app=x"))


# Whatever part of the world is shown, in whatever order: what is created, deleted or taken away is what the truth asks for.


class Judged(Mirrored):
    """Every write of a run but its status is held against what a run from the truth would have done in its place."""

    def run(self):
        found = asyncio.run(observe(self.api, KEY))
        wanted = [(type(write).__name__.lower(), write.resource.kind, write.name) for write in plan(found).writes]

        def judge(verb, kind, name):
            assert verb == "status" or kind == "Event" or (verb, kind, name) in wanted, (verb, kind, name, wanted)

        self.api.before_write = judge
        return super().run()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("show"), st.sets(st.sampled_from(MIRRORED))),
        st.tuples(st.just("run"), st.integers(1, 3)),
        st.tuples(st.just("control"), st.just(0)),
        st.tuples(st.just("ready"), st.just(0)),
        st.tuples(st.just("replicas"), st.integers(0, 4)),
        st.tuples(st.just("revision"), st.integers(64, 68)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("vandal"), st.integers(0, 9)),
    ),
    max_size=30,
)


@pytest.mark.deep
@settings(max_examples=examples(12), phases=[Phase.generate])
@given(steps)
def test_however_little_is_shown_nothing_wrong_is_written_and_in_the_end_all_is_well(moves):
    judge(moves)


@pytest.mark.deep
@settings(max_examples=examples(40), phases=[Phase.generate])
@given(steps)
def test_in_many_more_orders_too_nothing_wrong_is_written_and_in_the_end_all_is_well(moves):
    judge(moves)


def judge(moves):
    world = Judged()
    for move, value in moves:
        step(world, move, value)
    world.restart()
    world.settle()
    world.make_ready()
    world.settle()
    assert world.reason() in ("Available", "ScaledToZero")
    (deployment,) = world.api.of(DEPLOYMENTS)
    assert deployment["spec"]["replicas"] == world.api.of(SERVICES)[0]["spec"]["replicas"]


def step(world, move, value):
    """One thing that happens."""
    moves = {
        "show": lambda: world.show(*value) if value else None,
        "run": lambda: [attempt(world) for _ in range(value)],
        "control": world.api.control,
        "ready": lambda: [get_ready(world, pod) for pod in world.api.of(PODS)],
        "replicas": lambda: world.edit(replicas=value),
        "revision": lambda: world.edit(engine={"maxModelLen": value}),
        "restart": world.restart,
        "vandal": lambda: vandalise(world, value),
    }
    moves[move]()


def attempt(world):
    with contextlib.suppress(OperatorError):  # the queue would retry
        world.run()


def vandalise(world, number):
    """Removes something of the service."""
    victims = [key for key in world.api.objects if key[0] not in ("InferenceService", "ServingProfile")]
    if victims:
        del world.api.objects[victims[number % len(victims)]]


# The check


class Woken(list):
    def add(self, key, *, urgent=False):  # noqa: ARG002 (the queue's words)
        self.append(key)


def checked(world):
    woken = Woken()
    whole = Whole({NODES: lambda body: body["metadata"]["name"]}, world.clock)
    return Check(world.api, Shown(world.mirror, whole, (*MIRRORED, NODES)), Door(woken)), whole, woken


def test_what_no_event_told_is_found_and_wakes_its_service(world):
    world.show()
    check, _, woken = checked(world)
    assert asyncio.run(check.once()) == 0
    assert woken == []
    (pod,) = world.api.of(PODS)
    del world.api.objects[("Pod", "ns", pod["metadata"]["name"])]
    world.api.edit(DEPLOYMENTS, "ns", world.names(DEPLOYMENTS)[0], lambda body: body["spec"].update(replicas=7))
    assert asyncio.run(check.once()) == 2
    assert set(woken) == {KEY}
    assert asyncio.run(check.once()) == 0


def test_a_profile_and_a_node_that_nobody_told_of_are_found(world):
    world.show()
    check, whole, woken = checked(world)
    world.api.put(PROFILES, profile_body("new"))
    whole.put(NODES, {"metadata": {"name": "ghost"}})
    assert asyncio.run(check.once()) == 2
    assert Key("", "new") in woken
    assert whole.all(NODES) == ()


def test_of_the_world_a_lost_change_is_found_as_a_lost_deletion_is_and_wakes_who_waits(world):
    check, whole, woken = checked(world)
    check._door.waits(KEY, waiting=True)
    labels = {"metadata": {"name": "n", "labels": {"size": "1"}}}
    whole = Whole({NODES: lambda body: body["metadata"]["labels"]["size"]}, world.clock)
    check._world, check._whole = whole, [NODES]
    world.show()
    whole.put(NODES, world.api.put(NODES, labels))
    assert asyncio.run(check.once()) == 0
    world.api.edit(NODES, "", "n", lambda body: body["metadata"]["labels"].update(size="2"))
    assert (asyncio.run(check.once()), whole.all(NODES), woken) == (1, ("2",), [KEY])


def test_what_the_check_read_is_not_undone_by_an_event_that_was_on_its_way(world):
    check, whole, _ = checked(world)
    whole = Whole({NODES: lambda body: body["metadata"]["labels"]["size"]}, world.clock)
    check._world, check._whole = whole, [NODES]
    first = world.api.put(NODES, {"metadata": {"name": "n", "labels": {"size": "1"}}})
    first = copy.deepcopy(first)
    whole.put(NODES, first)
    world.api.edit(NODES, "", "n", lambda body: body["metadata"]["labels"].update(size="2"))
    second = copy.deepcopy(world.api.of(NODES)[0])
    assert asyncio.run(check.once()) == 1
    for late in (first, second):
        assert not whole.put(NODES, late)
        assert not whole.drop(NODES, late)
    assert whole.all(NODES) == ("2",)
    world.api.edit(NODES, "", "n", lambda body: body["metadata"]["labels"].update(size="3"))
    assert whole.put(NODES, copy.deepcopy(world.api.of(NODES)[0]))
    world.clock.now += EXPECTED + 1
    assert whole.put(NODES, first), "a restored store: versions go back"


def test_who_ended_unseen_is_no_more_woken_for_where_he_stood_and_who_was_never_told_of_is(world):
    world.show()
    check, _, woken = checked(world)
    (pod,) = world.live(PODS)
    name = Key("ns", pod["metadata"]["name"])
    check._door.service(KEY, "default", gone=False)
    check._door.replica(name, Stand(KEY, "n"), gone=False)
    del world.api.objects[("Pod", *name)]
    world.api.put(SERVICES, service_body("other"))
    asyncio.run(check.once())
    woken.clear()
    check._door.node("n")
    assert woken == []
    check._door.profile("default")
    assert set(woken) == {Key("", "default"), KEY, Key("ns", "other")}
    # A run finds the end of the service before the check does: to the check nothing is wrong.
    world.mirror.forget(SERVICES, KEY)
    del world.api.objects[("InferenceService", *KEY)]
    assert asyncio.run(check.once()) == 0
    woken.clear()
    check._door.profile("default")
    assert set(woken) == {Key("", "default"), Key("ns", "other")}


def test_a_pod_that_no_event_told_of_stands_where_it_stands(world):
    world.show()
    check, _, woken = checked(world)
    (pod,) = world.live(PODS)
    world.mirror.forget(PODS, Key("ns", pod["metadata"]["name"]))
    world.api.edit(PODS, "ns", pod["metadata"]["name"], lambda body: body.update(spec={"nodeName": "n"}))
    assert asyncio.run(check.once()) == 1
    woken.clear()
    check._door.node("n")
    assert woken == [KEY]


def test_what_is_told_while_the_check_reads_is_believed_and_not_what_it_read(world):
    world.show()
    check, _, woken = checked(world)
    (pod,) = world.live(PODS)
    world.api.edit(PODS, "ns", pod["metadata"]["name"], lambda body: body["metadata"].update(labels=pod["metadata"]["labels"] | {"a": "b"}))
    (stale,) = world.live(PODS)
    read = world.api.get

    async def slow(resource, namespace, name):
        world.mirror.put(PODS, stale | {"metadata": stale["metadata"] | {"resourceVersion": "99999"}})
        await read(resource, namespace, name)
        return stale

    world.api.get = slow
    assert (asyncio.run(check.once()), woken) == (0, [])
    assert world.mirror.version(PODS, Key("ns", pod["metadata"]["name"])) == "99999"


def test_an_own_service_that_no_event_told_of_is_found(world):
    world.show()
    check, _, woken = checked(world)
    world.api.put(SERVICES, service_body("other"))
    assert asyncio.run(check.once()) == 1
    assert woken == [Key("ns", "other")]


def test_a_kind_that_may_not_be_read_keeps_nobody_from_checking_the_others(world):
    world.show()
    check, whole, woken = checked(world)
    versions = world.api.versions

    async def denied(resource, selector):
        if resource == SERVICES:
            raise Denied("403")
        return await versions(resource, selector)

    world.api.versions = denied
    whole.put(NODES, {"metadata": {"name": "ghost"}})
    world.api.edit(DEPLOYMENTS, "ns", world.names(DEPLOYMENTS)[0], lambda body: body["spec"].update(replicas=7))
    assert (asyncio.run(check.once()), woken, whole.all(NODES)) == (2, [KEY], ())


def listened(world, silences):
    """A check whose watches have all been accepted, long ago."""
    check, whole, _ = checked(world)
    check._silences = silences
    for resource in (*MIRRORED, NODES):
        silences.accepted(f"/{resource.plural}", 0.0)
    return check, whole


def test_only_who_was_silent_for_long_is_compared_and_whom_a_list_contradicts_is_deaf(world):
    world.show()
    silences, reads, versions = Silences(), [], world.api.versions
    check, _ = listened(world, silences)
    silences.heard("/nodes", 1e12)

    async def counted(resource, selector):
        reads.append(resource)
        return await versions(resource, selector)

    world.api.versions = counted
    world.api.edit(DEPLOYMENTS, "ns", world.names(DEPLOYMENTS)[0], lambda body: body["spec"].update(replicas=7))
    asyncio.run(check.doubt(0.0))
    assert reads == []
    asyncio.run(check.doubt(100.0))
    assert set(reads) == set(MIRRORED)
    assert silences.deaf(1e13, 180.0) == ["deployments"]


def test_an_object_that_is_never_shown_makes_no_watch_deaf(world):
    """A service's label without a value: a list by that label has it, no mirror keeps it."""
    world.show()
    silences = Silences()
    check, whole = listened(world, silences)
    world.api.put(PODS, {"metadata": {"name": "odd", "namespace": "ns", "labels": {LABEL_SERVICE: ""}}})
    asyncio.run(check.once())
    assert silences.deaf(1e13, 180.0) == []
    world.api.put(NODES, {"metadata": {"name": "untold"}})
    asyncio.run(check.once())
    assert silences.deaf(1e13, 180.0) == ["nodes"]
    assert whole.all(NODES) == ("untold",)


def lose_deletion(world, whole):
    """In the gap before a list of the watch's own, whose events are all heard."""
    (deployment,) = world.names(DEPLOYMENTS)
    del world.api.objects["Deployment", "ns", deployment]
    whole.put(NODES, {"metadata": {"name": "ghost"}})


def lose_change(world, whole):
    (deployment,) = world.names(DEPLOYMENTS)
    world.api.edit(DEPLOYMENTS, "ns", deployment, lambda body: body["spec"].update(replicas=7))
    world.api.put(NODES, {"metadata": {"name": "other"}})
    whole.put(NODES, {"metadata": {"name": "other", "resourceVersion": "1"}})


def lose_addition(world, whole):
    (deployment,) = world.api.of(DEPLOYMENTS)
    world.api.put(DEPLOYMENTS, {**copy.deepcopy(deployment), "metadata": {**deployment["metadata"], "name": "tiny-0123456789"}})
    world.api.put(NODES, {"metadata": {"name": "untold"}})


@pytest.mark.parametrize(
    ("lose", "deaf"), [(lose_deletion, None), (lose_change, "deployments, nodes"), (lose_addition, "deployments, nodes")]
)
def test_a_deletion_that_a_new_watch_never_tells_restarts_nobody_and_what_it_would_tell_does(world, monkeypatch, lose, deaf):
    """Idle kinds of a server without bookmarks: their watches are begun anew every 15 s, the last event was of their lists, at 5 s."""
    world.show()
    vitals, step, said = Vitals(queue_age=lambda: 0.0), PATIENCE / LOOKS, {}
    vitals._beat = 1e9
    check, whole = listened(world, vitals.silences)
    for resource in (*MIRRORED, NODES):
        vitals.heard(f"/{resource.plural}", 5.0)
    lose(world, whole)
    for now_s in (step * number for number in range(1, 60)):
        for resource in (*MIRRORED, NODES):
            vitals.watched(f"/{resource.plural}", now_s)
        monkeypatch.setattr("pagoda_operator.watch.check.time", SimpleNamespace(monotonic=lambda now_s=now_s: now_s))
        asyncio.run(check.doubt(now_s))
        said.setdefault(vitals.ailment(now_s), now_s)
    assert list(said) == [None, f"watch keeps back what a list shows: {deaf}"][: 1 + (deaf is not None)]
    assert max(said.values()) <= 5 + MAX_WATCH_AGE + step
    assert world.mirror.versions(DEPLOYMENTS) == asyncio.run(world.api.versions(DEPLOYMENTS, LABEL_SERVICE))
    assert whole.versions(NODES) == asyncio.run(world.api.versions(NODES, ""))


def test_what_comes_and_goes_while_a_repair_reads_it_is_not_brought_back(world):
    """It stands as before the comparison, as unknown, and what the repair reads is what it was."""
    world.show()
    check, _, _ = checked(world)
    (name,), get = world.names(PODS), world.api.get
    world.api.edit(PODS, "ns", name, lambda body: body["status"].update(phase="Running"))
    (pod,) = world.api.of(PODS)
    world.mirror.forget(PODS, Key("ns", name))  # nobody has told of it yet

    async def read(resource, namespace, name):
        body = await get(resource, namespace, name)
        if resource == PODS:
            world.mirror.put(PODS, pod)
            world.mirror.drop(PODS, pod)
        return body

    world.api.get = read
    asyncio.run(check.once())
    assert world.mirror.versions(PODS) == {}


def test_a_leader_decides_nothing_before_it_has_read_the_quotas_once(world, monkeypatch):
    """A list as of before the quota was made, and its events late: to a new process all seemed free."""
    monkeypatch.setattr("pagoda_operator.watch.check._TRY_AGAIN", 0.0)
    caps = Whole({QUOTAS: lambda body: SimpleNamespace(namespaces=(body["metadata"]["name"],))}, world.clock)
    reads, versions = [], world.api.versions
    check = Check(world.api, Shown(world.mirror, caps, (*MIRRORED, QUOTAS)), Door(Woken()))
    world.api.put(QUOTAS, {"metadata": {"name": "ns"}})

    async def at_first_away(resource, selector):
        reads.append(resource)
        if len(reads) == 1:
            raise Denied("403")
        return await versions(resource, selector)

    async def workers():
        await asyncio.gather(check.caps(), check.caps())

    world.api.versions = at_first_away
    asyncio.run(workers())
    assert ([quota.namespaces for quota in caps.all(QUOTAS)], reads) == ([("ns",)], [QUOTAS, QUOTAS])


def test_the_check_waits_between_two_looks(monkeypatch):
    class Once(Exception):
        pass

    async def stop(seconds):
        raise Once(seconds)

    monkeypatch.setattr(asyncio, "sleep", stop)
    check = Check(None, Shown(Mirror(lambda: 0.0), Whole({}, lambda: 0.0), ()), Door(Woken()))
    with pytest.raises(Once) as raised:
        asyncio.run(check.run(300, random.Random(1)))
    assert 240 <= raised.value.args[0] <= 360


def labelled(namespace, name, service):
    return {"metadata": {"namespace": namespace, "name": name, "resourceVersion": "7", "labels": {LABEL_SERVICE: service}}}


def test_a_name_is_alone_where_nothing_of_it_was_shown_in_another_namespace():
    mirror, here, there = Mirror(Clock()), Key("n1", "chat"), Key("n2", "chat")
    assert not mirror.alone(here)  # it may be anywhere
    mirror.put(PODS, labelled("n1", "p", "chat"))
    mirror.put(DEPLOYMENTS, labelled("n1", "d", "chat"))
    assert (mirror.alone(here), mirror.alone(there)) == (True, False)
    for pod in ("p", "q"):  # a stranger's: no service bears the name there
        mirror.put(PODS, labelled("n2", pod, "chat"))
    assert (mirror.alone(here), mirror.alone(there)) == (False, False)
    mirror.forget(PODS, Key("n2", "p"))
    assert not mirror.alone(here)
    mirror.put(PODS, labelled("n2", "q", "other"))
    assert (mirror.alone(here), mirror.alone(Key("n2", "other"))) == (True, True)
    for resource, name in ((PODS, "p"), (DEPLOYMENTS, "d")):
        assert mirror.alone(here)
        mirror.forget(resource, Key("n1", name))
    mirror.forget(PODS, Key("n2", "q"))
    assert (mirror.alone(here), mirror._homes) == (False, {})


def test_when_the_scheduler_wrote_of_a_pod_is_shown_as_it_is_read():
    """A reason that changed while no operator ran counts from then on, whichever way the pod is seen first."""
    fields = [
        {"manager": "kube-controller-manager", "time": "2026-06-01T09:00:00Z", "fieldsV1": {"f:spec": {}}},
        {"manager": "kube-scheduler", "time": "2026-06-01T10:00:00Z", "fieldsV1": {"f:status": {}}, "subresource": "status"},
    ]
    unbound = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": "2026-06-01T09:00:00Z"}
    meta = {"namespace": "ns", "name": "p", "resourceVersion": "1", "labels": {LABEL_SERVICE: "tiny"}, "managedFields": fields}
    body = {"metadata": meta, "spec": {}, "status": {"conditions": [unbound]}}
    shown = Mirror(Clock())
    shown.put(PODS, body)
    (seen,) = asyncio.run(shown.list(PODS, "ns", f"{LABEL_SERVICE}=tiny"))
    assert parse_pod(seen).unscheduled_told == parse_pod(body).unscheduled_told == 1780308000.0
    assert not shown.put(PODS, body | {"metadata": meta | {"resourceVersion": "2", "managedFields": fields[1:]}}), (
        "others' writes are no news"
    )
