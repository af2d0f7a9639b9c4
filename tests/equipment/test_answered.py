"""What the operator's bench counts as the answer to a change."""

import pytest
from support.judges.answered import Change, Ran, Seen, Span, Written, answers, changes, share
from support.judges.operator_log import announced, edits, known
from support.kube.operator_process import USER

KINDS = ("deployments", "services")


def test_a_change_lasts_until_the_next_one_of_its_service():
    assert changes([("a", 1.0), ("b", 2.0), ("a", 5.0)], 9.0) == [Change("a", 1.0, 5.0), Change("b", 2.0, 9.0), Change("a", 5.0, 9.0)]


def test_the_last_write_of_each_kind_answers_and_not_the_first():
    writes = [Written("deployments", 1.5), Written("services", 1.6), Written("deployments", 3.0), Written("services", 2.0)]
    found = answers([Change("a", 1.0, 9.0)], {"a": Seen(writes, [], [])}, KINDS, 9.0)
    assert (found.whole, found.unanswered) == ([2.0], 0)


def test_writes_of_another_change_or_kind_are_not_its_own():
    writes = [Written("deployments", 0.5), Written("deployments", 1.5), Written("services", 1.6), Written("events", 1.9)]
    later = [Written("deployments", 6.0), Written("services", 7.0)]
    found = answers([Change("a", 1.0, 5.0), Change("a", 5.0, 9.0)], {"a": Seen([*writes, *later], [], [])}, KINDS, 9.0)
    assert found.whole == [pytest.approx(0.6), 2.0]


def test_what_was_not_answered_counts_as_the_rest_of_the_run_at_least_and_as_ours_where_nothing_was_written():
    reported = {"a": Seen([Written("deployments", 2.0)], [Ran(1.0, 1.5, 2.0, 1)], [])}
    found = answers([Change("a", 1.0, 9.0), Change("b", 3.0, 9.0), Change("c", 4.0, 9.0)], reported, KINDS, 9.0)
    assert (found.whole, found.ours, found.unanswered) == ([8.0, 6.0, 5.0], [1.0, 6.0, 5.0], 3)


def test_ours_is_all_until_the_first_written_answer_and_then_what_was_wanted_or_at_work():
    runs = [Ran(1.0, 1.5, 2.0, 0), Ran(2.0, 2.5, 3.0, 2), Ran(7.0, 7.5, 8.0, 1)]
    assert share(0.5, 8.0, Seen([], runs, [])) == pytest.approx(2.5 + 1.0)
    assert share(0.5, 7.2, Seen([], runs, [])) == pytest.approx(2.5 + 0.2)


def test_of_ours_is_taken_once_what_the_api_server_was_at_work_on():
    runs = [Ran(1.0, 2.0, 5.0, 1), Ran(6.0, 6.0, 7.0, 1)]
    served = [Span(2.0, 3.0), Span(2.5, 3.5), Span(3.25, 3.5), Span(5.2, 5.9), Span(6.5, 9.0)]
    assert share(0.0, 7.0, Seen([], runs, served)) == pytest.approx(5.0 + 1.0 - 1.5 - 0.5)


def test_a_run_that_had_begun_before_the_change_does_not_answer_it():
    assert share(1.0, 5.0, Seen([], [Ran(0.0, 0.5, 1.2, 1), Ran(1.1, 1.2, 5.0, 1)], [])) == pytest.approx(4.0)


def test_a_change_is_queued_with_the_first_run_that_was_wanted_after_it():
    seen = {"a": Seen([], [Ran(0.5, 1.5, 2.0, 1), Ran(1.25, 2.0, 3.0, 1)], [])}
    assert answers([Change("a", 1.0, 9.0)], seen, KINDS, 9.0).news == [0.25]


def test_the_time_before_an_edit_is_announced_is_the_api_servers():
    reported = announced([("a", 1.0), ("a", 5.0), ("b", 2.0)], {"a": [0.5, 1.5, 7.0]})
    assert reported == [("a", Span(1.0, 1.5)), ("a", Span(5.0, 7.0))]


def asked(user, verb, resource, name, begun, done, subresource=""):
    ref = {"resource": resource, "name": name, **({"subresource": subresource} if subresource else {})}
    times = {"requestReceivedTimestamp": f"2026-01-01T00:00:{begun:05.2f}Z", "stageTimestamp": f"2026-01-01T00:00:{done:05.2f}Z"}
    return {"user": {"username": user}, "verb": verb, "objectRef": ref, "requestURI": "/", **times}


def test_a_run_that_an_edit_woke_before_it_was_answered_is_its_answer():
    log = [
        asked("admin", "patch", "inferenceservices", "s1", 1.0, 2.0),
        asked("admin", "patch", "inferenceservices", "s1", 1.0, 2.0, "scale"),
        asked(USER, "patch", "deployments", "s1-abc", 2.5, 2.75),
        asked(USER, "patch", "inferenceservices", "s1", 3.0, 3.25, "status"),
        {"user": {"username": "admin"}, "verb": "patch", "requestURI": "/healthz"},
    ]
    run = {"name": "s1", "timestamp": "2026-01-01T00:00:04Z", "took_s": 2.25, "queued_s": 0.0, "writes": 2}
    ((_, at),) = edits(log)
    seen = known({"s1"}, log, [run])
    found = answers([Change("s1", at, at + 60.0)], seen, ("deployments", "inferenceservices"), at + 60.0)
    assert found.ours == [pytest.approx(2.25 - 1.0 - 0.5)]
    assert found.whole == [pytest.approx(2.25)]
