"""What the cache makes of events and frames: names to the oldest, ages by the sender's clock, replicas to their own service object."""

from pagoda_contracts.name_owners import read_reserved
from pagoda_gateway.routing.endpoint import NO_CHANGE, Frame, PrefixChange
from pagoda_gateway.routing.verdict import Verdict, judge
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.services import Replica, Service

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
READY = Frame(1, "ready", 0, 0, 0)


def replica(name="ns/a", **changes) -> Replica:
    return Replica(name, "ns/s", "", "10.0.0.1:8000", "10.0.0.1:9000", draining=False)._replace(**changes)


def cache(*replicas: Replica) -> EndpointCache:
    made = EndpointCache()
    made.put_service(Service("ns/s", "u", OLD, ("m",)))
    for one in replicas:
        made.put_replica(one)
    return made


def only(made: EndpointCache):
    (endpoint,) = made.endpoints(made.resolve("m"))
    return endpoint


def test_a_name_moves_only_when_its_oldest_claimer_is_gone():
    made = cache()
    made.put_service(Service("ns/new", "v", NEW, ("m", "n")))
    assert (made.resolve("m").key, made.resolve("n").key) == ("ns/s", "ns/new")
    made.delete_service("ns/s")
    assert made.resolve("m").key == "ns/new"
    assert made.resolve("other") is None


def test_a_service_that_has_a_name_keeps_it_from_an_older_one_that_wants_it_later():
    made = cache()
    made.put_service(Service("ns/new", "v", NEW, ("n",), owned=("n",)))
    made.put_service(Service("ns/s", "u", OLD, ("m", "n"), owned=("m",)))
    assert (made.resolve("m").key, made.resolve("n").key) == ("ns/s", "ns/new")
    made.put_service(Service("ns/new", "v", NEW, ("o",), owned=("n",)))
    assert made.resolve("n").key == "ns/s"


def test_a_reserved_name_leads_to_no_service_of_another_namespace_though_it_has_it_or_an_adapter_of_that_name():
    made = EndpointCache(read_reserved('{"m": ["ns"], "n": ["ns"]}'))
    made.put_service(Service("other/s", "u", OLD, ("m", "o"), owned=("m", "o"), adapters=("n",)))
    assert (made.resolve("m"), made.resolve("n"), made.resolve("o").key) == (None, None, "other/s")
    made.put_service(Service("ns/new", "v", NEW, ("m",)))
    assert made.resolve("m").key == "ns/new"


def test_replicas_of_an_older_object_with_the_same_name_are_not_its_successors():
    made = cache(replica("ns/old", service_uid="before"), replica("ns/mine", service_uid="u"))
    assert [endpoint.name for endpoint in made.endpoints(made.resolve("m"))] == ["ns/mine"]


def test_a_frame_that_waited_in_a_queue_is_as_old_as_it_is():
    made = cache(replica())
    made.update_state("ns/a", READY, sent_at_ms=1_000, now_ms=51_000)
    made.update_state("ns/a", READY, sent_at_ms=1_500, now_ms=55_000)
    assert judge(only(made), 55_000) is Verdict.SILENT
    made.update_state("ns/a", READY, sent_at_ms=5_000, now_ms=55_000)
    assert judge(only(made), 55_000) is Verdict.READY


def test_a_clock_that_runs_slow_is_no_dead_sender():
    """100 ppm for a day, a frame each half second: a fixed offset would be 8.6 s off."""
    made = cache(replica())
    now = sent = 0.0
    for _ in range(2 * 86_400):
        now, sent = now + 500, sent + 499.95
        made.update_state("ns/a", READY, sent, now)
    assert judge(only(made), now) is Verdict.READY


def test_a_new_stream_is_a_new_clock():
    made = cache(replica())
    made.update_state("ns/a", READY, sent_at_ms=1_000_000, now_ms=1_000)
    made.stream_lost("ns/a")
    assert judge(only(made), 1_000) is Verdict.SUSPECT
    made.update_state("ns/a", READY, sent_at_ms=5, now_ms=2_000)
    assert judge(only(made), 2_000) is Verdict.READY


def test_a_refusal_lasts_until_the_next_frame():
    made = cache(replica())
    made.update_state("ns/a", READY, 0, 0)
    made.mark_refused(only(made))
    made.mark_no_place(only(made))
    assert judge(only(made), 0) is Verdict.REFUSED
    made.update_state("ns/a", READY, 100, 100)
    assert (judge(only(made), 100), only(made).no_place) == (Verdict.READY, False)


def test_each_replica_added_removed_or_with_a_new_address_is_reported_once():
    made, calls = EndpointCache(), []
    made.on_replica_added = lambda one: calls.append(("added", one.http))
    made.on_replica_removed = lambda name: calls.append(("removed", name))
    made.put_replica(replica())
    made.put_replica(replica())
    made.put_replica(replica(draining=True))
    made.put_replica(replica(http="10.0.0.2:8000", draining=True))
    made.delete_replica("ns/a")
    made.delete_replica("ns/a")
    assert calls == [("added", "10.0.0.1:8000"), ("removed", "ns/a"), ("added", "10.0.0.2:8000"), ("removed", "ns/a")]


def test_draining_can_be_turned_back():
    made = cache(replica())
    made.update_state("ns/a", READY, 0, 0)
    made.put_replica(replica(draining=True))
    assert judge(only(made), 0) is Verdict.DRAINING
    made.put_replica(replica())
    assert judge(only(made), 0) is Verdict.READY


def test_a_service_s_status_says_which_devices_are_faulty_before_or_after_their_replicas_are_known():
    made = cache(replica(), replica("ns/b"))
    for endpoint in made.endpoints(made.resolve("m")):
        made.update_state(endpoint.name, READY, 0, 0)
    service = made.resolve("m")

    def verdicts():
        return {endpoint.name: str(judge(endpoint, 0)) for endpoint in made.endpoints(made.resolve("m"))}

    made.put_service(service._replace(faulty=frozenset({"ns/a", "ns/c"})))
    assert verdicts() == {"ns/a": "device-fault", "ns/b": "ready"}
    made.put_replica(replica("ns/c"))
    made.update_state("ns/c", READY, 0, 0)
    assert verdicts()["ns/c"] == "device-fault"
    made.put_service(service)
    assert set(verdicts().values()) == {"ready"}


def test_frames_of_a_deleted_replica_are_ignored():
    made = cache(replica())
    endpoint = only(made)
    with made.in_flight(endpoint):
        made.delete_replica("ns/a")
        made.update_state("ns/a", READY, 0, 0)
        made.stream_lost("ns/a")
    assert made.endpoints(made.resolve("m")) == []


def test_cached_prefixes_are_known_from_frames_and_dropped_at_a_reset():
    made = cache(replica())
    for change, resident in (
        (PrefixChange(True, [b"1", b"2"], []), {b"1", b"2"}),
        (PrefixChange(False, [b"3"], [b"1", b"9"]), {b"2", b"3"}),
        (NO_CHANGE, {b"2", b"3"}),
        (PrefixChange(True, [b"4"], []), {b"4"}),
    ):
        made.update_state("ns/a", READY, 0, 0, change)
        assert only(made).resident == resident
