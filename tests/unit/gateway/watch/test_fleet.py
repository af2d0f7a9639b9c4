"""What the fleet makes of news: names to the oldest, ages by the sender's clock, replicas to their own service object."""

from pagoda_gateway.routing.picker import Frame, Verdict, verdict
from pagoda_gateway.watch.fleet import Fleet, Member, Service

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
READY = Frame(1, "ready", 0, 0, 0)


def member(name="ns/a", **changes) -> Member:
    return Member(name, "ns/s", "", "10.0.0.1:8000", "10.0.0.1:9000", leaving=False)._replace(**changes)


def fleet(*members: Member) -> Fleet:
    made = Fleet()
    made.put_service(Service("ns/s", "u", OLD, ("m",)))
    for one in members:
        made.put_member(one)
    return made


def only(made: Fleet):
    (endpoint,) = made.endpoints(made.resolve("m"))
    return endpoint


def test_a_name_moves_only_when_its_oldest_claimer_is_gone():
    made = fleet()
    made.put_service(Service("ns/new", "v", NEW, ("m", "n")))
    assert (made.resolve("m").key, made.resolve("n").key) == ("ns/s", "ns/new")
    made.drop_service("ns/s")
    assert made.resolve("m").key == "ns/new"
    assert made.resolve("other") is None


def test_a_service_that_has_a_name_keeps_it_from_an_older_one_that_wants_it_later():
    made = fleet()
    made.put_service(Service("ns/new", "v", NEW, ("n",), held=("n",)))
    made.put_service(Service("ns/s", "u", OLD, ("m", "n"), held=("m",)))
    assert (made.resolve("m").key, made.resolve("n").key) == ("ns/s", "ns/new")
    made.put_service(Service("ns/new", "v", NEW, ("o",), held=("n",)))
    assert made.resolve("n").key == "ns/s"


def test_replicas_of_an_older_object_with_the_same_name_are_not_its_successors():
    made = fleet(member("ns/old", service_uid="before"), member("ns/mine", service_uid="u"))
    assert [endpoint.name for endpoint in made.endpoints(made.resolve("m"))] == ["ns/mine"]


def test_a_frame_that_waited_in_a_queue_is_as_old_as_it_is():
    made = fleet(member())
    made.hear("ns/a", READY, sent_at_ms=1_000, now_ms=51_000)
    made.hear("ns/a", READY, sent_at_ms=1_500, now_ms=55_000)
    assert verdict(only(made), 55_000) is Verdict.SILENT
    made.hear("ns/a", READY, sent_at_ms=5_000, now_ms=55_000)
    assert verdict(only(made), 55_000) is Verdict.READY


def test_a_clock_that_runs_slow_is_no_dead_sender():
    """100 ppm for a day, a frame each half second: a fixed offset would be 8.6 s off."""
    made = fleet(member())
    now = sent = 0.0
    for _ in range(2 * 86_400):
        now, sent = now + 500, sent + 499.95
        made.hear("ns/a", READY, sent, now)
    assert verdict(only(made), now) is Verdict.READY


def test_a_new_stream_is_a_new_clock():
    made = fleet(member())
    made.hear("ns/a", READY, sent_at_ms=1_000_000, now_ms=1_000)
    made.lost("ns/a")
    assert verdict(only(made), 1_000) is Verdict.SUSPECT
    made.hear("ns/a", READY, sent_at_ms=5, now_ms=2_000)
    assert verdict(only(made), 2_000) is Verdict.READY


def test_a_refusal_lasts_until_the_next_frame():
    made = fleet(member())
    made.hear("ns/a", READY, 0, 0)
    made.refuse(only(made))
    assert verdict(only(made), 0) is Verdict.REFUSED
    made.hear("ns/a", READY, 100, 100)
    assert verdict(only(made), 100) is Verdict.READY


def test_who_listens_is_told_of_joins_parts_and_new_addresses_once():
    made, told = Fleet(), []
    made.on_join = lambda one: told.append(("join", one.http))
    made.on_part = lambda name: told.append(("part", name))
    made.put_member(member())
    made.put_member(member())
    made.put_member(member(leaving=True))
    made.put_member(member(http="10.0.0.2:8000", leaving=True))
    made.drop_member("ns/a")
    made.drop_member("ns/a")
    assert told == [("join", "10.0.0.1:8000"), ("part", "ns/a"), ("join", "10.0.0.2:8000"), ("part", "ns/a")]


def test_leaving_can_be_turned_back():
    made = fleet(member())
    made.hear("ns/a", READY, 0, 0)
    made.put_member(member(leaving=True))
    assert verdict(only(made), 0) is Verdict.DRAINING
    made.put_member(member())
    assert verdict(only(made), 0) is Verdict.READY


def test_news_of_the_gone_is_nothing():
    made = fleet(member())
    endpoint = only(made)
    made.begin(endpoint)
    made.drop_member("ns/a")
    made.hear("ns/a", READY, 0, 0)
    made.lost("ns/a")
    made.end(endpoint)
    assert made.endpoints(made.resolve("m")) == []
