"""When replicas under way should be ready."""

from pagoda_operator.api.pods import Pod
from pagoda_operator.decide.status.status import expected


def pod(name, created, took=None, accelerator="cpu", **more):
    since = None if took is None else created + took
    return Pod(name, "r", accelerator, ready=took is not None, created=created, ready_since=since, **more)


def test_nothing_is_said_where_nothing_is_known_or_under_way():
    assert expected([], 1) is None
    assert expected([pod("a", 1000.0)], 1) is None
    assert expected([pod("a", 1000.0, 60)], 1) is None
    assert expected([pod("a", 1000.0, 60, accelerator="gpu"), pod("b", 2000.0)], 2) is None


def test_the_last_one_under_way_counts_with_what_its_like_took():
    ready = [pod("a", 1000.0, 40), pod("b", 1000.0, 60), pod("c", 1000.0, 50)]
    assert expected([*ready, pod("d", 3600.0), pod("e", 3000.0)], 5) == "1970-01-01T01:00:50Z"


def test_a_time_that_has_passed_is_not_told():
    pods = [pod("a", 1000.0, 60), pod("b", 2000.0)]
    assert [expected(pods, 2, now=now) for now in (2059.0, 2060.0)] == ["1970-01-01T00:34:20Z", None]


def test_starts_that_needed_a_second_try_teach_nothing():
    assert expected([pod("a", 1000.0, 500, restarts=1), pod("b", 2000.0)], 2) is None


def test_what_is_remembered_counts_where_none_of_its_like_is_there():
    remembered = {"cpu": (30.0, 50.0, 90.0), "gpu": (600.0,)}
    assert expected([pod("a", 3600.0)], 1, remembered) == "1970-01-01T01:00:50Z"
    assert expected([pod("a", 1000.0, 40), pod("b", 3600.0)], 2, remembered) == "1970-01-01T01:00:40Z"
    assert expected([pod("a", 3600.0, accelerator="tpu")], 1, remembered) is None


def test_a_crashed_one_is_not_expected():
    assert expected([pod("a", 1000.0, 10), pod("b", 2000.0, exit_code=1)], 2) is None


def test_enough_ready_replicas_expect_no_more():
    assert expected([pod("a", 1000.0, 10), pod("b", 2000.0)], 1) is None
