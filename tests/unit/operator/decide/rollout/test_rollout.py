"""How many replicas of which revision, what share of requests, and what turns a rollout back: one decision at a time."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import AbortOn, RolloutSpec
from pagoda_operator.api.signals import RevisionSignal, ServiceSignals
from pagoda_operator.decide.replicas.replicas import RevisionState
from pagoda_operator.decide.rollout.counts import RolloutState, share
from pagoda_operator.decide.rollout.rollout import decide, judge
from support.suite.profiles import examples

NOW = 1_800_000_000.0
CANARY = RolloutSpec.model_validate(
    {"canary": {"steps": [{"weight": 10, "hold": "1m"}, {"weight": 50, "hold": "1m"}], "abortOn": {"errorRate": "1%", "ttftP95": "2x"}}}
)


def revision(name, count=0, ready=0, **words):
    return RevisionState(
        name,
        f"hash-{name}",
        **{"replicas": count, "pods": count, "up": ready, "ready": ready, "placed": count, "proven": ready > 0} | words,
    )


def record(strategy="Surge", phase="Progressing", **words):
    return RolloutStatus(revision="hash-new", replaces="hash-old", strategy=strategy, phase=phase, **words)


def state(new, old, wanted=3, **words):
    spec = words.pop("spec", RolloutSpec())
    return RolloutState(spec, wanted, new, (old,) if old else (), words.pop("record", record()), now=NOW, **words)


def counts(it):
    targets = decide(it).targets
    return targets["new"], targets.get("old")


def stamp(age):
    return datetime.fromtimestamp(NOW - age, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def heard(new, old=None, *, fresh=True):
    return ServiceSignals(fresh=fresh, revisions={"hash-new": new, "hash-old": old or RevisionSignal()})


def test_a_first_revision_is_no_rollout():
    reported = decide(state(revision("new"), None, record=None))
    assert (reported.targets, reported.record, reported.weights) == ({"new": 3}, None, {})


def test_what_is_decided_is_written_before_it_is_done():
    reported = decide(state(revision("new"), revision("old", 3, 3), record=None))
    assert (reported.targets, reported.record) == ({"new": 0, "old": 3}, record())
    assert reported.kept == {"old"}


@pytest.mark.parametrize(
    ("strategy", "room", "chosen"),
    [("Auto", None, "Surge"), ("Auto", 1, "Surge"), ("Auto", 0, "Replace"), ("Surge", 0, "Surge"), ("Replace", 9, "Replace")],
)
def test_auto_goes_by_room_and_the_others_by_the_spec(strategy, room, chosen):
    reported = decide(state(revision("new"), revision("old", 3, 3), record=None, room=room, spec=RolloutSpec(strategy=strategy)))
    assert reported.record.strategy == chosen


def test_a_surge_with_unknown_room_keeps_all_old_replicas_until_the_new_ones_are_ready():
    assert counts(state(revision("new"), revision("old", 3, 3))) == (3, 3)
    assert counts(state(revision("new", 3, 2), revision("old", 3, 3))) == (3, 3)
    assert counts(state(revision("new", 3, 3), revision("old", 3, 3))) == (3, 0)
    assert decide(state(revision("new", 3, 3), revision("old", 3, 3))).record.phase == "Retiring"


def test_a_bad_revision_beside_a_whole_old_one_may_still_recover():
    bad = revision("new", 3, 0, broken=3, why="new-1: no such image")
    reported = decide(state(bad, revision("old", 3, 3)))
    assert ((reported.targets["new"], reported.targets["old"]), reported.record.phase) == ((3, 3), "Progressing")


def test_a_surge_by_room_replaces_ready_for_ready_and_a_brief_unreadiness_moves_nothing():
    assert counts(state(revision("new"), revision("old", 3, 3), room=1)) == (1, 3)
    assert counts(state(revision("new", 1, 1), revision("old", 3, 3), room=0)) == (1, 2)
    assert counts(state(revision("new", 2, 1), revision("old", 2, 2), room=0)) == (2, 2)
    assert counts(state(revision("new", 3, 1), revision("old", 1, 1), room=0)) == (3, 1)
    assert counts(state(revision("new", 2, 2, broken=0), revision("old", 1, 1), room=1)) == (3, 1)


def test_a_surge_by_room_restores_old_replicas_for_broken_new_ones():
    assert counts(state(revision("new", 2, 0, broken=2), revision("old", 1, 1), room=1)) == (3, 2)


def test_surge_asks_for_one_even_without_room_so_that_a_node_may_be_added():
    assert counts(state(revision("new"), revision("old", 3, 3), room=0, spec=RolloutSpec(strategy="Surge"))) == (1, 3)


def test_replace_takes_one_old_one_away_then_makes_one_new_one():
    def at(new, old):
        return counts(state(new, old, record=record("Replace")))

    assert at(revision("new"), revision("old", 3, 3)) == (0, 2)
    assert at(revision("new"), revision("old", 2, 2)) == (1, 2)
    assert at(revision("new", 1, 0), revision("old", 2, 2)) == (1, 2)
    assert at(revision("new", 1, 1), revision("old", 2, 2)) == (1, 1)
    assert at(revision("new", 2, 2), revision("old", 0, 0)) == (3, 0)


def test_unverified_replicas_start_no_rollout_back_without_a_record():
    """Gone back from a canary to the revision before, which is whole: not to what was fled, and not through the steps again."""
    fled = RolloutStatus(revision="hash-old", replaces="hash-new", strategy="Surge", phase="Progressing", step=0)
    for ready in range(4):
        reported = decide(state(replace(revision("new", 3, 3), ready=ready), revision("old", 1, 1), record=fled, spec=CANARY))
        assert (reported.targets, reported.record, reported.weights) == ({"old": 0, "new": 3}, None, {})


@pytest.mark.parametrize(("strategy", "room", "old"), [("Replace", None, revision("old", 1, 0)), ("Surge", 0, revision("old", 2, 1))])
def test_an_unverified_replica_cancels_no_drain(strategy, room, old):
    """One of the old side drains, for the one new replica there is."""
    for ready in (1, 0):
        new = replace(revision("new", 1, 1), ready=ready)
        assert counts(state(new, old, wanted=2, record=record(strategy), room=room))[1] == old.replicas - 1


def test_an_unverified_replica_stops_the_next_drain():
    for ready, left in ((1, 0), (0, 1)):
        new = replace(revision("new", 1, 1), ready=ready)
        assert counts(state(new, revision("old", 1, 1), wanted=2, record=record("Replace")))[1] == left


def test_after_a_rollback_the_new_revision_serves_while_the_old_one_is_unverified():
    back, uncertain = record(phase="RolledBack", reason="x"), replace(revision("old", 3, 3), ready=0, unverified="d", again=5.0)
    reported = decide(state(revision("new", 1, 1), uncertain, record=back))
    assert (reported.targets, reported.again) == ({"old": 3, "new": 1}, 5.0)
    assert decide(state(revision("new", 1, 1), revision("old", 3, 3), record=back)).targets == {"old": 3, "new": 0}


def test_replace_with_a_bad_image_stops_at_the_first_and_brings_the_replaced_one_back():
    bad = revision("new", 1, 0, broken=1, why="new-1: no such image")
    reported = decide(state(bad, revision("old", 2, 2), record=record("Replace")))
    assert (reported.record.phase, reported.record.reason) == ("RolledBack", "new-1: no such image")
    back = record("Replace", "RolledBack", reason="x")
    assert counts(state(bad, revision("old", 2, 2), record=back)) == (0, 2)
    assert counts(state(revision("new"), revision("old", 2, 2), record=back)) == (0, 3)
    assert counts(state(revision("new", 2, 1, broken=1), revision("old", 1, 1), record=back)) == (1, 1)


def test_a_rollback_stays_until_the_spec_asks_for_another_revision():
    back = record(phase="RolledBack", reason="x")
    reported = decide(state(revision("new"), revision("old", 3, 3), record=back))
    assert (reported.targets, reported.record, reported.kept) == ({"new": 0, "old": 3}, back, {"old"})
    other = decide(state(replace(revision("new"), hash="hash-third"), revision("old", 3, 3), record=back))
    assert (other.record.phase, other.record.revision) == ("Progressing", "hash-third")


def test_after_a_rollback_at_zero_the_old_revision_wakes():
    back = record(phase="RolledBack", reason="x")
    asleep = decide(state(revision("new"), revision("old", proven=True), wanted=0, record=back))
    assert (asleep.targets, asleep.kept, asleep.record) == ({"new": 0, "old": 0}, {"old"}, back)
    assert counts(state(revision("new"), revision("old", proven=True), wanted=1, record=back)) == (0, 1)


def test_auto_becomes_replace_when_a_surge_finds_no_place_and_stays_so():
    stuck = revision("new", 1, 0, placed=0, short=1, stuck=True)
    reported = decide(state(stuck, revision("old", 3, 3)))
    assert reported.record.strategy == "Replace"
    after = decide(state(revision("new", 1, 1), revision("old", 2, 2), record=record("Replace")))
    assert after.record.strategy == "Replace"
    waiting = revision("new", 1, 0, placed=0, short=1)
    assert decide(state(waiting, revision("old", 3, 3))).again == 10.0


def test_a_retiring_revision_returns_for_broken_replicas_and_not_for_a_hiccup():
    retiring = record(phase="Retiring")
    assert counts(state(revision("new", 3, 2), revision("old", 3, 3), record=retiring)) == (3, 0)
    assert counts(state(revision("new", 3, 1, broken=2), revision("old", 1, 1), record=retiring)) == (3, 2)


def test_a_third_revision_keeps_what_the_other_two_lack():
    third = revision("third", 2, 2)
    it = RolloutState(RolloutSpec(), 3, revision("new"), (revision("old", 2, 2), third), record(), now=NOW)
    assert decide(it).targets == {"new": 3, "old": 3, "third": 1}


def test_still_older_revisions_keep_together_what_the_others_lack():
    olds = (revision("old", 1, 1), revision("third", 2, 2), revision("fourth", 2, 2), revision("fifth", 1, 1))
    reported = decide(RolloutState(RolloutSpec(), 4, revision("new"), olds, record(), now=NOW)).targets
    assert {name: reported[name] for name in ("third", "fourth", "fifth")} == {"third": 1, "fourth": 2, "fifth": 0}


# Canary


def canary(new, old, **words):
    return state(new, old, **{"wanted": 10, "spec": CANARY, "record": record(step=0)} | words)


def test_a_canary_begins_with_its_share_of_replicas_and_none_of_the_requests():
    begun = decide(canary(revision("new"), revision("old", 10, 10), record=None))
    assert (begun.record.step, begun.weights) == (0, {"hash-old": 100, "hash-new": 0})
    reported = decide(canary(revision("new"), revision("old", 10, 10)))
    assert (reported.targets, reported.weights) == ({"new": 1, "old": 10}, {"hash-old": 100, "hash-new": 0})


def test_a_canary_step_begins_when_its_replicas_are_ready_and_lasts_as_long_as_asked():
    started = decide(canary(revision("new", 1, 1), revision("old", 10, 10)))
    assert (started.record.since, started.weights["hash-new"]) == (stamp(0), 10)
    ok = heard(RevisionSignal(100, 0, 0.5), RevisionSignal(900, 0, 0.5))
    held = canary(revision("new", 1, 1), revision("old", 10, 10), record=record(step=0, since=stamp(59)), signals=ok)
    assert (decide(held).record.step, decide(held).again) == (0, 5.0)
    passed = replace(held, record=record(step=0, since=stamp(60)))
    assert (decide(passed).record.step, decide(passed).record.since, decide(passed).weights["hash-new"]) == (1, None, 10)
    wider = canary(revision("new", 1, 1), revision("old", 10, 10), record=record(step=1))
    assert (decide(wider).targets["new"], decide(wider).weights["hash-new"]) == (5, 10)
    assert decide(replace(wider, current=revision("new", 5, 5))).weights["hash-new"] == 50


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.5, 0.999])
def test_a_hold_that_begins_within_a_second_is_no_shorter_than_asked(fraction):
    """What the status says of the beginning has whole seconds."""
    ok = heard(RevisionSignal(100, 0, 0.5), RevisionSignal(900, 0, 0.5))
    it = replace(canary(revision("new", 1, 1), revision("old", 10, 10), signals=ok), now=NOW + fraction)
    begun = decide(it).record
    assert [decide(replace(it, record=begun, now=it.now + seconds)).record.step for seconds in (59.999, 61.0)] == [0, 1]


@pytest.mark.parametrize("jump", [-300, 300])
def test_a_canary_step_lasts_as_long_as_asked_if_the_clock_is_set(jump):
    ok = heard(RevisionSignal(100, 0, 0.5), RevisionSignal(900, 0, 0.5))
    it = canary(revision("new", 1, 1), revision("old", 10, 10), record=record(step=0, since=stamp(jump)), signals=ok)
    assert [decide(replace(it, elapsed=seconds)).record.step for seconds in (59.0, 60.0)] == [0, 1]


def test_after_the_last_step_the_rest_follows_at_the_last_share():
    last = canary(revision("new", 5, 5), revision("old", 10, 10), record=record(step=2))
    assert (decide(last).targets, decide(last).weights["hash-new"]) == ({"new": 10, "old": 10}, 50)
    done = decide(replace(last, current=revision("new", 10, 10)))
    assert (done.record.phase, done.weights) == ("Retiring", {"hash-old": 0, "hash-new": 100})


def test_errors_turn_a_canary_back_with_a_reason():
    bad = heard(RevisionSignal(100, 9, 0.5), RevisionSignal(900, 0, 0.5))
    reported = decide(canary(revision("new", 1, 1), revision("old", 10, 10), record=record(step=0, since=stamp(5)), signals=bad))
    assert reported.record.phase == "RolledBack"
    assert reported.record.reason == "canary at 10 %: 9 of 100 requests failed within a minute, abortOn.errorRate is 1%"
    assert reported.weights == {"hash-old": 100, "hash-new": 0}


def test_a_replica_that_ends_while_it_has_its_share_turns_the_canary_back():
    crashed = revision("new", 1, 0, broken=1, why="new-1 ended with exit code 1")
    assert decide(canary(crashed, revision("old", 10, 10), record=record(step=0, since=stamp(5)))).record.phase == "RolledBack"
    assert decide(canary(crashed, revision("old", 10, 10))).record.phase == "Progressing"


@pytest.mark.parametrize("signals", [None, heard(RevisionSignal(100, 50), fresh=False)])
def test_without_fresh_signals_a_canary_is_neither_turned_back_nor_passed_on(signals):
    old = canary(revision("new", 1, 1), revision("old", 10, 10), record=record(step=0, since=stamp(3600)), signals=signals)
    reported = decide(old)
    assert (reported.record, reported.waits) == (old.record, "no gateway reports on the new revision")


def test_a_canary_without_limits_goes_by_time():
    spec = RolloutSpec.model_validate({"canary": {"steps": [{"weight": 10, "hold": "1m"}]}})
    reported = decide(canary(revision("new", 1, 1), revision("old", 10, 10), spec=spec, record=record(step=0, since=stamp(61))))
    assert reported.record.step == 1


def test_a_canary_that_sleeps_goes_on_when_it_wakes():
    sleeping = canary(revision("new"), revision("old", proven=True), wanted=0, record=record(step=1))
    reported = decide(sleeping)
    assert (reported.targets, reported.record, reported.kept) == ({"new": 0, "old": 0}, sleeping.record, {"old"})


def test_without_room_a_canary_takes_old_places_but_never_the_last():
    replacing = record("Replace", step=1)
    assert counts(canary(revision("new"), revision("old", 10, 10), record=replacing)) == (0, 9)
    assert counts(canary(revision("new"), revision("old", 1, 1), wanted=1, record=replacing)) == (0, 1)


@pytest.mark.parametrize(("wanted", "weight", "replicas"), [(10, 10, 1), (3, 10, 1), (3, 50, 2), (3, 100, 3), (1, 1, 1)])
def test_a_share_is_at_least_one_replica(wanted, weight, replicas):
    assert share(wanted, weight) == replicas


# The judgement


@pytest.mark.parametrize(
    ("requests", "errors", "over"), [(19, 19, False), (20, 1, False), (20, 2, True), (200, 2, False), (1000, 20, True), (1000, 10, False)]
)
def test_errors_are_judged_by_what_is_likely_at_least(requests, errors, over):
    assert bool(judge(AbortOn(error_rate="1%"), RevisionSignal(requests, errors), RevisionSignal())) is over


@pytest.mark.parametrize(
    ("limit", "new", "old", "over"),
    [
        ("2x", RevisionSignal(40, 0, 1.1), RevisionSignal(40, 0, 0.5), True),
        ("2x", RevisionSignal(40, 0, 0.9), RevisionSignal(40, 0, 0.5), False),
        ("2x", RevisionSignal(39, 0, 9.0), RevisionSignal(40, 0, 0.5), False),
        ("2x", RevisionSignal(40, 0, 9.0), RevisionSignal(39, 0, 0.5), False),
        ("2x", RevisionSignal(40, 0, 9.0), RevisionSignal(40, 0, 0.0), False),
        ("800ms", RevisionSignal(40, 0, 0.9), RevisionSignal(), True),
        ("800ms", RevisionSignal(40, 0, 0.7), RevisionSignal(), False),
    ],
)
def test_first_tokens_are_judged_against_the_old_ones_or_a_duration(limit, new, old, over):
    assert bool(judge(AbortOn(ttft_p95=limit), new, old)) is over


# Whatever the numbers

SMALL = st.integers(0, 5)


@st.composite
def revisions(draw, name):
    pods = draw(SMALL)
    up = draw(st.integers(0, pods))
    ready = draw(st.integers(0, up))
    broken = draw(st.integers(0, pods - up))
    words = {"unverified": "d" if ready < up else "", "why": "x" if broken else ""}
    return RevisionState(name, f"hash-{name}", draw(st.integers(0, 6)), pods, up, ready, placed=pods, broken=broken, proven=True, **words)


@settings(max_examples=examples(200))
@given(
    new=revisions("new"), old=revisions("old"), wanted=SMALL, room=st.none() | SMALL, strategy=st.sampled_from(["Surge", "Replace"]),
    phase=st.sampled_from(["Progressing", "RolledBack"]), step=st.none() | st.integers(0, 2),
)  # fmt: skip
def test_serving_replicas_are_never_taken_below_what_is_wanted(new, old, wanted, room, strategy, phase, step):
    spec = CANARY if step is not None and strategy == "Surge" else RolloutSpec(strategy=strategy)
    it = RolloutState(spec, wanted, new, (old,), record(strategy, phase, step=step if strategy == "Surge" else None), room, now=NOW)
    targets = decide(it).targets
    stays = min(new.ready, targets["new"]) + min(old.ready, targets["old"])
    spared = 1 if strategy == "Replace" else 0
    assert stays >= min(wanted - spared, new.ready + old.ready)
    # Nor is one that is only uncertain removed for it: of the old revision no more go than new ones answer.
    assert min(old.up, targets["old"]) >= min(old.up, wanted - spared - new.ready) or phase == "RolledBack"
    assert all(target >= 0 for target in targets.values())


@given(new=revisions("new"), old=revisions("old"), wanted=SMALL, room=st.none() | SMALL)
def test_surge_asks_for_no_more_than_twice_and_replace_for_no_more_than_there_are_places(new, old, wanted, room):
    surge = decide(RolloutState(RolloutSpec(strategy="Surge"), wanted, new, (old,), record(), room, now=NOW)).targets
    assert sum(surge.values()) <= 2 * wanted
    spec = RolloutSpec(strategy="Replace")
    targets = decide(RolloutState(spec, wanted, new, (old,), record("Replace"), room, now=NOW)).targets
    assert targets["new"] <= max(min(new.total, wanted), wanted - old.occupied) or new.ready >= wanted
