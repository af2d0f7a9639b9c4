"""Which silent watch has nothing to say, and which one keeps something back."""

import pytest
from pagoda_operator.api.state import PODS
from pagoda_operator.serve.handlers import Intake
from pagoda_operator.serve.probes import MAX_WATCH_AGE, Vitals
from pagoda_operator.watch.silence import LOOKS, PATIENCE, Silences

PATH, KIND = "/api/v1/pods", "pods"


@pytest.fixture
def silences():
    made = Silences()
    made.accepted(PATH, 0.0)
    return made


def test_who_was_silent_for_long_is_doubted_and_who_was_never_watched_is_not(silences):
    assert not silences.doubtful(KIND, PATIENCE)
    assert silences.doubtful(KIND, PATIENCE + 1)
    assert not silences.doubtful("nodes", 1e6)
    silences.heard(PATH, PATIENCE)
    assert not silences.doubtful(KIND, PATIENCE + 1)


def test_a_connection_that_is_accepted_anew_proves_nothing(silences):
    silences.accepted(PATH, 70.0)
    assert silences.doubtful(KIND, PATIENCE + 1)


def test_silence_that_a_list_agrees_with_is_believed_for_ever(silences):
    for at in range(100, 100_000, 100):
        assert silences.doubtful(KIND, at)
        silences.compared(KIND, at, agreed=True)
        assert silences.deaf(at + 99, MAX_WATCH_AGE) == []


def test_who_keeps_something_back_is_deaf_until_heard_and_no_agreement_helps(silences):
    silences.compared(KIND, 100.0, agreed=False)
    silences.compared(KIND, 115.0, agreed=True)  # the mirror was repaired
    assert silences.doubtful(KIND, 116.0)
    assert silences.deaf(180.0, MAX_WATCH_AGE) == []
    assert silences.deaf(181.0, MAX_WATCH_AGE) == [KIND]
    silences.heard(PATH, 182.0)
    assert silences.deaf(1000.0, MAX_WATCH_AGE) == []


async def test_what_the_list_said_that_a_watch_begins_with_was_said_too(silences):
    """A comparison between a list and its handlers finds what is about to be handled; nothing more may come for hours."""
    intake = Intake(silences.heard)
    silences.compared(KIND, 100.0, agreed=False)
    intake.touch(PODS)
    assert silences.deaf(1e12, MAX_WATCH_AGE) == []


def test_what_was_said_after_the_list_may_have_been_just_that(silences):
    silences.heard(PATH, 101.0)
    silences.compared(KIND, 100.0, agreed=False)
    assert silences.deaf(1000.0, MAX_WATCH_AGE) == []


@pytest.mark.parametrize("lost_at", [0.0, 1.0, 89.0, 90.0, 500.0, 517.0])
def test_whenever_a_watch_falls_silent_it_is_red_within_180_s_of_what_it_first_kept_back(lost_at):
    """Looks as check.py takes them; silence before it was true."""
    vitals = Vitals(queue_age=lambda: 0.0)
    vitals._beat = 1e9
    vitals.watched(PATH, 0.0)
    step, red = PATIENCE / LOOKS, None
    for now in (step * number for number in range(1, 200)):
        vitals.watched(PATH, now)  # accepted anew, each time
        if vitals.silences.doubtful(KIND, now):
            vitals.silences.compared(KIND, now, agreed=now < lost_at)
        if vitals.ailment(now) is not None:
            red = now
            break
    assert red is not None
    assert red - lost_at <= MAX_WATCH_AGE + step
    assert vitals.ailment(red) == "watch keeps back what a list shows: pods"
