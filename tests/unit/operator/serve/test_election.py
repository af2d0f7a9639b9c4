"""Leadership: never two at once, whatever clocks, pauses and lost answers do; and it does not stay vacant."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_operator.serve.election import Create, Quit, Record, Renew, Take, Terms, View, Wait, cause, decide, leads, seen, won
from support.suite.profiles import examples

TERMS = Terms()
ME = View("me")


def record(holder="other", version="1", transitions=3, duration=15.0):
    return Record(version, holder, transitions, duration)


def test_a_missing_lease_is_created_and_a_free_one_taken_at_once():
    assert decide(seen(ME, None, 5.0), 5.0, TERMS) == Create(1)
    free = record(holder="", duration=1.0)
    assert decide(seen(ME, free, 5.0), 5.0, TERMS) == Take(free, 4)


def test_another_holder_is_respected_for_the_duration_after_each_change():
    view = seen(ME, record(), 100.0)
    assert decide(view, 100.0, TERMS) == Wait(2.0)
    assert decide(view, 114.5, TERMS) == Wait(0.5)
    assert decide(view, 115.0, TERMS) == Take(record(), 4)
    renewed = seen(view, record(version="2"), 114.9)
    assert decide(renewed, 116.0, TERMS) == Wait(2.0)


def test_a_lease_of_the_same_identity_is_taken_at_once_with_a_new_epoch():
    mine = record(holder="me")
    assert decide(seen(ME, mine, 0.0), 0.0, TERMS) == Take(mine, 4)


def test_a_leader_gives_up_at_the_deadline_after_its_last_renewal_began():
    view = won(ME, record("me", "9", 4), begun=50.0)
    assert (view.epoch, decide(view, 59.9, TERMS)) == (4, Renew(record("me", "9", 4)))
    assert leads(view, 59.9, TERMS)
    assert not leads(view, 60.0, TERMS)
    assert isinstance(decide(view, 60.0, TERMS), Quit)


@pytest.mark.parametrize("found", [record("other", "9", 5), record("", "9", 4), record("me", "9", 5)])
def test_a_leader_that_finds_another_holder_or_epoch_quits(found):
    view = won(ME, record("me", "8", 4), begun=50.0)
    assert isinstance(decide(seen(view, found, 51.0), 51.0, TERMS), Quit)


def test_a_deleted_lease_is_created_again_with_a_higher_epoch():
    leader = seen(won(ME, record("me", "8", 4), begun=50.0), None, 51.0)
    assert decide(leader, 51.0, TERMS) == Create(5)
    other = seen(seen(ME, record("them", "8", 4), 50.0), None, 51.0)
    assert decide(other, 52.0, TERMS) == Wait(2.0)
    assert decide(other, 66.0, TERMS) == Create(5)


@pytest.mark.parametrize(("holder", "expires"), [("other", 15.0), ("", 0.0), ("me", 0.0)])
def test_a_recreated_lease_does_not_bring_an_old_epoch_back(holder, expires):
    """Replicas refuse orders of an epoch below the highest that they have seen: a leader with an old one could order nothing."""
    view = seen(ME, record("them", "80", 7), 50.0)
    anew = record(holder, "95", 1)
    for gone in (view, seen(view, None, 51.0)):
        assert decide(seen(gone, anew, 60.0), 60.0 + expires, TERMS) == Take(anew, 8)


def test_an_older_version_of_the_lease_makes_every_contender_quit():
    """A store restored within its deadline: all that its mirrors show, or a standby's, is of another history."""
    view = won(ME, record("me", "80", 4), begun=50.0)
    back = seen(view, record("me", "9", 4), 51.0)
    assert decide(back, 51.0, TERMS) == Quit("the Lease is older than it was: the store was restored")
    assert isinstance(decide(seen(view, record("me", "111", 4), 51.0), 51.0, TERMS), Renew)
    standby = seen(seen(ME, record("them", "80", 7), 50.0), record("them", "9", 4), 51.0)
    assert isinstance(decide(standby, 51.0, TERMS), Quit)


# Contenders: each has a clock of its own, may stand still between any two of its moves, and may lose an answer.


@dataclasses.dataclass
class Contender:
    view: View
    offset: float
    rate: float
    stage: str = "look"
    step: object = None
    begun: float = 0.0
    dead: bool = False


class Harness:
    def __init__(self, clocks):
        self.time = 0.0
        self.lease = None
        self.versions = 0
        self.epochs = []
        self.contenders = [Contender(View(f"c{n}"), offset, rate) for n, (offset, rate) in enumerate(clocks)]

    def clock(self, contender):
        return contender.offset + contender.rate * self.time

    def move(self, contender, lost):
        """The contender's next piece of work; pauses are the time that passes between moves."""
        now = self.clock(contender)
        if contender.stage == "look":
            if contender.view.renewed is None or contender.view.record is None or lost:
                contender.view = seen(contender.view, self.lease, now)
            contender.stage = "decide"
        elif contender.stage == "decide":
            contender.step, contender.begun = decide(contender.view, now, TERMS), now
            contender.stage = "commit"
            if isinstance(contender.step, Quit):
                self.restart(contender)
            elif isinstance(contender.step, Wait):
                contender.stage = "look"
        elif contender.stage == "commit":
            result = self.commit(contender)
            contender.stage = "look"
            if result is None or lost:  # a conflict, or an answer that never came: look again
                contender.view = seen(contender.view, self.lease, now)
            else:
                contender.view = won(contender.view, result, contender.begun)

    def commit(self, contender):
        step = contender.step
        if isinstance(step, Create):
            if self.lease is not None:
                return None
            transitions = step.transitions
        else:
            if self.lease is None or self.lease.version != step.record.version:
                return None
            transitions = step.transitions if isinstance(step, Take) else step.record.transitions
        self.versions += 1
        if not isinstance(step, Renew):
            self.epochs.append(transitions)
        self.lease = Record(str(self.versions), contender.view.identity, transitions, TERMS.duration)
        return self.lease

    def restart(self, contender):
        contender.view, contender.stage = View(contender.view.identity), "look"

    def leaders(self):
        return [c.view.identity for c in self.contenders if leads(c.view, self.clock(c), TERMS)]


clocks = st.tuples(st.floats(-300, 300), st.floats(0.85, 1.15))
# Who, after how long, whether an answer gets lost, and how many pieces of work in a row without a pause.
moves = st.tuples(
    st.integers(0, 2),
    st.sampled_from([0.0, 0.1, 1.0, 2.0, 4.0, 7.0, 9.0, 14.0, 16.0, 40.0]),
    st.sampled_from([False] * 4 + [True]),
    st.integers(1, 3),
)


@pytest.mark.deep
@settings(max_examples=examples(300))
@given(st.lists(clocks, min_size=2, max_size=3), st.lists(moves, max_size=120))
def test_there_are_never_two_leaders_and_epochs_only_grow(clocks, moves):
    harness = Harness(clocks)
    for index, seconds, lost, count in moves:
        harness.time += seconds
        assert len(harness.leaders()) <= 1
        for _ in range(count):
            harness.move(harness.contenders[index % len(harness.contenders)], lost)
            assert len(harness.leaders()) <= 1, (harness.time, harness.contenders)
    assert harness.epochs == sorted(set(harness.epochs))


@settings(max_examples=examples(50))
@given(st.lists(clocks, min_size=2, max_size=3), st.lists(moves, max_size=60))
def test_when_all_contenders_run_again_one_leads(clocks, moves):
    harness = Harness(clocks)
    for index, seconds, lost, count in moves:
        harness.time += seconds
        for _ in range(count):
            harness.move(harness.contenders[index % len(harness.contenders)], lost)
    for _ in range(40):
        harness.time += 1.0
        for contender in harness.contenders:
            for _ in range(3):
                harness.move(contender, False)
    assert len(harness.leaders()) == 1


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (Create(1), "there was no Lease"),
        (Create(4), "the Lease was deleted"),
        (Take(record(""), 4), "the leader before it gave the Lease back"),
        (Take(record("me"), 4), "an earlier process of this name had the Lease"),
        (Take(record("other"), 4), "other did not renew the Lease"),
    ],
)
def test_a_leader_says_why_it_leads(step, why):
    assert cause(step, "me") == why
