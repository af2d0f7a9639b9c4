"""The operator's runs for LoraAdapters: what is sent to which replica, when again, and what is written."""

from datetime import UTC, datetime

from pagoda_contracts.resources.meta import ObjectMeta
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_operator.api.adapters import Phase, Progress
from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import ADAPTERS, Key, Observed
from pagoda_operator.run.adapters import Adapters
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.triggers import NameOwners
from support.kube.lora_adapters import adapter_body

KEY = Key("ns", "tiny")
DIGEST = f"sha256:{'a' * 64}"
HAS, FETCHES, FAILS = Progress(Phase.LOADED, DIGEST), Progress(Phase.FETCHING), Progress(Phase.FAILED, reason="no")


class Place:
    """Caches, replicas that answer as the test says, and an operator over them."""

    def __init__(self, *bodies):
        self.caches, self.sent, self.written, self.version = Caches(), [], [], 1
        # By pod: what it answers for each adapter, None for silence.
        self.answers = {}
        self.pods = ()
        for body in bodies:
            self.caches.event(ADAPTERS, body, gone=False)
        self.restart()

    def restart(self):
        """Another process of the operator."""
        self.operator = Adapters(self, self.caches, NameOwners(), self, lambda: datetime(2026, 1, 1, tzinfo=UTC))

    async def give(self, orders):
        self.sent += [(order.pod, order.generation, tuple(entry.digest for entry in order.entries)) for order in orders]
        found = {}
        for order in orders:
            answer = self.answers.get(order.pod, HAS)
            found[order.uid] = None if answer is None else {entry.name: answer for entry in order.entries}
        return found

    async def apply_status(self, resource, manifest, _manager):
        assert resource == ADAPTERS
        name, self.version = manifest["metadata"]["name"], self.version + 1
        self.written.append((name, manifest["status"]["conditions"][0]["reason"]))
        body = next(one for one in self.bodies() if one.meta.name == name)
        spec = {"placement": body.spec.placement.wire(), "source": body.spec.source.wire()}
        fresh = adapter_body(name, generation=body.generation, status=manifest["status"], **spec)
        fresh["metadata"]["resourceVersion"] = str(self.version)
        self.caches.event(ADAPTERS, fresh, gone=False)

    def bodies(self):
        return self.caches.all(ADAPTERS)

    def serve(self, *names, restarts=0):
        self.pods = tuple(
            Pod(name, "r", "a", ready=True, address="10.0.0.1", restarts=restarts, meta={"uid": f"uid-{name}"}) for name in names
        )

    async def run(self, adapters=True):
        body = {"model": {"uri": "pvc://models"}, "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}]}
        spec = InferenceServiceSpec.model_validate(body | ({"adapters": {}} if adapters else {}))
        meta = ObjectMeta(name="tiny", namespace="ns", uid="u")
        self.sent.clear()
        self.written.clear()
        return await self.operator.run(KEY, Observed(meta, {}, spec=spec, pods=self.pods))


async def settled(place):
    while await place.run() is not None:
        pass


async def test_every_ready_replica_is_sent_the_catalogue_and_the_found_digest_holds_for_all():
    place = Place(adapter_body("a"))
    place.serve("p", "q")
    assert await place.run() == 0.0
    assert [(pod, digests) for pod, _, digests in place.sent] == [("p", ("",)), ("q", ("",))]
    assert place.written == [("a", "Resident")]
    first = place.sent[0][1]
    assert await place.run() is None
    assert [(pod, digests) for pod, _, digests in place.sent] == [("p", (DIGEST,)), ("q", (DIGEST,))]
    assert place.sent[0][1] > first
    assert place.written == []


async def test_at_rest_nothing_is_sent_or_written():
    place = Place(adapter_body("a"))
    place.serve("p")
    await settled(place)
    assert await place.run() is None
    assert (place.sent, place.written) == ([], [])


async def test_it_is_sent_again_after_a_restart_of_the_container_or_of_the_operator_and_to_a_new_replica():
    place = Place(adapter_body("a"))
    place.serve("p")
    await settled(place)
    place.serve("p", restarts=1)
    await place.run()
    assert [pod for pod, *_ in place.sent] == ["p"]
    place.restart()
    await place.run()
    assert [pod for pod, *_ in place.sent] == ["p"]
    assert place.written == []
    place.pods += (Pod("q", "r", "a", ready=True, address="10.0.0.2", restarts=0, meta={"uid": "uid-q"}),)
    await place.run()
    assert [pod for pod, *_ in place.sent] == ["q"]


async def test_a_replica_that_fetches_fails_or_is_silent_is_asked_again():
    place = Place(adapter_body("a"))
    place.serve("p")
    for answer, again, reason in ((FETCHES, 1.0, "Loading"), (FAILS, 5.0, "AdapterRejected"), (None, 5.0, "AdapterRejected")):
        place.answers["p"] = answer
        assert await place.run() == again
        assert [one.status.conditions[0].reason for one in place.bodies()] == [reason]


async def test_what_a_replica_said_of_the_files_before_is_nothing_of_the_new_ones():
    place = Place(adapter_body("a"))
    place.serve("p", "q")
    await settled(place)
    changed = adapter_body("a", generation=2, status=next(iter(place.bodies())).raw_status, source={"uri": "pvc://models/new"})
    changed["metadata"]["resourceVersion"] = str(place.version + 1)
    place.caches.event(ADAPTERS, changed, gone=False)
    place.answers = {"p": None, "q": None}
    await place.run()
    assert place.written == [("a", "Loading")]
    assert next(iter(place.bodies())).digest == ""
    place.answers = {}
    await place.run()
    assert {digests for _, _, digests in place.sent} == {("",)}
    assert place.written == [("a", "Resident")]


async def test_an_adapter_that_fails_on_one_replica_goes_to_another_and_stays_there():
    place = Place(adapter_body("a", placement={"mode": "Replicas", "replicas": 1}))
    place.serve("p", "q")
    await place.run()
    ((first, _, _),) = [sent for sent in place.sent if sent[2]]
    place.restart()
    place.answers[first] = FAILS
    assert await place.run() == 5.0
    assert place.written == [("a", "AdapterRejected")]
    assert await place.run() is None
    assert place.written == [("a", "Resident")]
    await settled(place)
    (only,) = place.bodies()
    assert [(one.pod, one.state) for one in only.status.endpoints] == [(({"p", "q"} - {first}).pop(), "Loaded")]


async def test_it_counts_the_adapters_that_one_replica_has_alone():
    place = Place(adapter_body("a"), *(adapter_body(name, placement={"mode": "Replicas", "replicas": 1}) for name in "bc"))
    place.serve("p", "q")
    assert place.operator.sole(KEY) == {}
    await settled(place)
    where = {one.meta.name: [found.pod for found in one.status.endpoints] for one in place.bodies()}
    assert where["a"] == ["p", "q"]
    alone = [pod for name in "bc" for pod in where[name]]
    assert place.operator.sole(KEY) == {f"uid-{pod}": alone.count(pod) for pod in "pq"}


async def test_a_deleted_adapter_is_taken_from_the_replicas_and_a_service_without_adapters_is_sent_nothing():
    place = Place(adapter_body("a"))
    place.serve("p")
    await settled(place)
    (left,) = place.bodies()
    place.caches.event(ADAPTERS, adapter_body("a") | {"metadata": adapter_body("a")["metadata"] | {"resourceVersion": "99"}}, gone=True)
    assert left not in place.bodies()
    await place.run()
    assert [(pod, digests) for pod, _, digests in place.sent] == [("p", ())]
    place.restart()
    assert await place.run(adapters=False) is None
    assert place.sent == []


async def test_an_adapter_without_its_service_says_so():
    place = Place(adapter_body("a"))
    await place.operator.orphaned(KEY)
    assert place.written == [("a", "ServiceNotFound")]
    await place.run()
    assert place.written == [("a", "WaitingForReplicas")]
