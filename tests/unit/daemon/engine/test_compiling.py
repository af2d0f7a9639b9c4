"""Which grammars the pool is given, and when, with a pool that only writes it down."""

from pathlib import Path

from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.messages import Abort, Grammar, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.grammars import Grammars
from pagoda_daemon.scheduler.admission import abort, expire
from pagoda_daemon.scheduler.compilations import MOST_OF_TENANT
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.state import State
from pagoda_daemon.structured.pool import Pool, Tried
from support.engine.constrained import local_engine
from support.engine.toy_model import VOCAB

SLOW = "it takes more than 0.5 s of CPU time"


class Trials(Pool):
    """`tried` are the texts given, `answer` says the verdict on the last one. `full`: no process can be started."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__(Path("nothing.json"), VOCAB, serving=1, slots=4)
        self.tried = []
        self._names = []
        self._full = full

    def try_out(self, name, grammar, _now_ms):
        self.tried.append(grammar.text)
        self._names.append(name)
        if self._full:
            self.answer("this replica cannot use grammars")

    def answer(self, why=None):
        self.verdicts.note(self._names[-1], why)
        self._outcomes.append(Tried(self._names[-1], why))


class Desk:
    def __init__(self, *, full: bool = False):
        self.state = State(Limits.of(WorkerLimits(64, 4, VOCAB, 64), 4, 16))
        self.pool = Trials(full=full)
        self.grammars = Grammars(lambda *_: self.pool, lambda _fileno: None)
        self.ended = {}
        self.passed = []

    def submit(self, name, text, tenant="", deadline_ms=None):
        """Whether it is let in at once; None where it waits or is refused."""
        message = Submit(name, (1, 2), Sampling(5), tenant=tenant, deadline_ms=deadline_ms, grammar=Grammar("regex", text))
        refused = self.grammars.refusal(self.state, message, 0.0)
        if refused is not None:
            self.ended[name] = refused.refusal
        elif not self.grammars.take(self.state, message, 0.0):
            self.passed.append(name)

    def answer(self, why=None):
        self.pool.answer(why)
        self.hear()

    def hear(self):
        passed, outputs = self.grammars.hear(self.state, 0.0)
        self.passed += [message.request_id for message in passed]
        self.ended |= {row.request_id: row.refusal for row in outputs}


def test_bad_schemas_of_one_tenant_cost_the_honest_one_of_another_one_trial():
    desk = Desk()
    for at in range(16):
        desk.submit(f"bad{at}", f"bad{at}", "bad")
    desk.submit("honest", "honest", "honest")
    assert desk.pool.tried == ["bad0"], "one at a time"
    assert desk.state.stats().compiling == 17
    desk.answer(SLOW)
    assert desk.pool.tried == ["bad0", "honest"]
    desk.answer()
    assert desk.passed == ["honest"]
    for _ in range(15):
        desk.answer(SLOW)
    assert desk.pool.tried == ["bad0", "honest", *(f"bad{at}" for at in range(1, 16))]
    assert len(desk.ended) == 16
    assert desk.state.stats().compiling == 0


def test_a_bad_schema_is_refused_at_once_the_second_time_and_a_good_one_let_in():
    desk = Desk()
    desk.submit("bad", "bad")
    desk.answer(SLOW)
    desk.submit("good", "good")
    desk.answer()
    desk.submit("again", "bad", "somebody else")
    desk.submit("next", "good")
    assert desk.ended["again"] == desk.ended["bad"]
    assert desk.ended["again"].message == f"the grammar cannot be used: {SLOW}"
    assert desk.passed == ["good", "next"]
    assert desk.pool.tried == ["bad", "good"]


def test_a_tenant_with_a_full_queue_is_refused_and_another_one_is_not():
    desk = Desk()
    for at in range(MOST_OF_TENANT + 2):
        desk.submit(f"r{at}", f"g{at}", "a")
    desk.submit("other", "other", "b")
    assert [(name, refusal.reason) for name, refusal in desk.ended.items()] == [(f"r{MOST_OF_TENANT + 1}", "queue_full")]
    assert desk.state.stats().compiling == MOST_OF_TENANT + 2


def test_a_request_that_has_left_or_is_late_before_its_turn_is_never_tried():
    desk = Desk()
    for name, deadline in (("first", 5), ("gone", None), ("late", 5), ("last", None)):
        desk.submit(name, name, deadline_ms=deadline)
    abort(desk.state, "gone")
    assert [row.request_id for row in expire(desk.state, 6.0)] == ["first", "late"]
    desk.answer()
    assert desk.passed == [], "nobody waits for what was under way any more"
    desk.answer()
    assert (desk.pool.tried, desk.passed) == (["first", "last"], ["last"])
    desk.submit("first again", "first")
    assert desk.passed[-1] == "first again", "its verdict was kept"


def test_if_no_trial_can_begin_all_that_wait_are_answered_in_one_turn():
    desk = Desk(full=True)
    for at in range(3):
        desk.state.compilations.push(Submit(f"r{at}", (1,), Sampling(5), grammar=Grammar("regex", f"g{at}")), f"d{at}")
    desk.submit("x", "x")
    desk.hear()
    assert sorted(desk.ended) == ["r0", "r1", "r2", "x"]


def test_a_request_named_like_its_grammar_cannot_end_the_trial(tmp_path):
    """Names of requests are clients' to choose; a trial that is lost would stop the queue for good."""
    grammar = Grammar("regex", "[a-f]{3}")
    with local_engine(tmp_path) as engine:
        engine.send(Submit(grammar.digest, (1,), Sampling(9), grammar=grammar), Abort(grammar.digest))
        engine.send(Submit("x", (1,), Sampling(9), grammar=grammar))
        assert engine.end_of("x").finish_reason == "stop"
