"""What a grammar may cost: the kernel's limits on a worker, who is blamed when one dies, and the pool's books."""

import contextlib
import gc
import itertools
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from pagoda_daemon.core.messages import Grammar, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from pagoda_daemon.structured import limits, worker
from pagoda_daemon.structured import pool as pools
from pagoda_daemon.structured.blame import blame
from pagoda_daemon.structured.pool import Broken, Mask, Pool, Tried
from pagoda_daemon.structured.protocol import Advance, Masked, Open, mask_words
from pagoda_daemon.structured.vocabulary import read_vocabulary
from structlog.testing import capture_logs
from support.engine.constrained import BOMBS, LIMITS, PATIENCE_S, SLOW_BOMBS, local_engine
from support.engine.toy_model import VOCAB, tiny_model_dir

LONG = Grammar("regex", "[a-z]{2000}")
BOUND = "from pagoda_daemon.structured.worker import _Meter\nmeter = _Meter()\n"


def run(code):
    return subprocess.run([sys.executable, "-P", "-c", BOUND + code], capture_output=True, text=True, check=False)


@pytest.fixture
def pool(tmp_path):
    made = Pool(tiny_model_dir(tmp_path) / "tokenizer.json", VOCAB, serving=1, slots=2)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    made = Pool(tiny_model_dir(tmp_path_factory.mktemp("shared")) / "tokenizer.json", VOCAB, serving=1, slots=2)
    yield made
    made.stop()


def now():
    return time.monotonic() * 1000


def outcomes(pool, count=1):
    found = []
    deadline = time.monotonic() + PATIENCE_S
    pool.push(now())
    while len(found) < count:
        assert time.monotonic() < deadline
        pool._poll.poll(0.05)
        found += pool.outcomes(now())
    return found


def ids(mask):
    return [number for number in range(VOCAB) if mask.words.view("uint32")[number // 32] >> (number % 32) & 1]


def test_cpu_time_beyond_the_limit_ends_a_worker_at_once():
    done = run("meter.bound(0.2, 1 << 30)\nwhile True: pass\n")
    assert done.returncode == -signal.SIGPROF
    assert "2 s of CPU" in blame(done.returncode, late=False)
    assert "0.5 s of CPU" in blame(done.returncode, late=False, trial=True)


def test_memory_beyond_the_limit_is_not_given():
    assert run("meter.bound(9, 32 << 20)\nbytearray(16 << 20)\n").returncode == 0
    done = run("meter.bound(9, 32 << 20)\nbytearray(64 << 20)\n")
    assert "MemoryError" in done.stderr
    assert run("meter.bound(9, 32 << 20)\nmeter.unbound()\nbytearray(64 << 20)\n").returncode == 0


def test_a_worker_that_crashes_counts_against_its_grammar_and_one_that_is_killed_does_not():
    assert blame(-signal.SIGKILL, late=False) is None
    assert blame(0, late=False) is None
    assert "256 MiB" in blame(-signal.SIGABRT, late=False)
    assert blame(-signal.SIGSEGV, late=False)
    assert "20 s" in blame(-signal.SIGKILL, late=True)


def test_a_mask_says_what_may_follow_and_whether_the_text_may_end(pool):
    pool.open("a", Grammar("regex", "ab?"), now())
    [first] = outcomes(pool)
    assert (ids(first), first.consumed, first.standing) == ([ord("a")], 0, "open")
    pool.advance("a", (ord("a"),), now())
    [second] = outcomes(pool)
    assert (ids(second), second.consumed, second.standing) == ([ord("b")], 1, "accepting")
    pool.advance("a", (ord("b"),), now())
    assert [outcome.standing for outcome in outcomes(pool)] == ["complete"]


def test_a_token_that_the_grammar_forbids_breaks_its_matcher_alone(pool):
    pool.open("a", Grammar("regex", "ab"), now())
    pool.open("b", Grammar("regex", "ab"), now())
    outcomes(pool, 2)
    pool.advance("a", (ord("z"),), now())
    assert [(type(outcome), outcome.name, outcome.own) for outcome in outcomes(pool)] == [(Broken, "a", False)]
    assert "a" not in pool
    pool.advance("b", (ord("a"),), now())
    assert [(type(outcome), outcome.name) for outcome in outcomes(pool)] == [(Mask, "b")]


def test_two_answers_to_one_grammar_go_on_each_by_its_own_tokens(pool):
    for name in ("a", "b"):
        pool.open(name, Grammar("regex", "xyz"), now())
    outcomes(pool, 2)
    pool.advance("a", (ord("x"), ord("y")), now())
    [ahead] = outcomes(pool)
    pool.advance("b", (ord("x"),), now())
    [behind] = outcomes(pool)
    assert [(mask.name, mask.consumed, ids(mask)) for mask in (ahead, behind)] == [("a", 2, [ord("z")]), ("b", 1, [ord("y")])]


def test_a_matcher_that_is_made_anew_is_fed_all_its_tokens(pool, monkeypatch):
    monkeypatch.setattr(pools, "_REPLAY", 2)
    pool.open("a", Grammar("regex", "abcdefg"), now())
    pool.advance("a", tuple(b"abcde"), now())
    while outcomes(pool)[-1].consumed < 5:
        pass
    [killed] = pool.pids
    os.kill(killed, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while pool.pids == [killed]:
        assert time.monotonic() < deadline
        pool._poll.poll(0.05)
        assert pool.outcomes(now()) == [], "what is known is not said again"
    pool.advance("a", tuple(b"f"), now())
    [mask] = outcomes(pool)
    assert (type(mask), mask.consumed, ids(mask)) == (Mask, 6, [ord("g")])


class _Meter:
    """Writes down the limits that a job is done under."""

    grown = 0

    def __init__(self):
        self.cpu_s = []

    def size(self):
        return 0

    def bound(self, cpu_s, _room):
        self.cpu_s.append(cpu_s)

    def unbound(self):
        pass


def test_a_grammars_cpu_time_is_added_up_over_its_tokens(tmp_path, monkeypatch):
    """Each job takes 0.25 s here: what is left is the first allowance, a little more for each token, and less by all that was used."""
    vocabulary = read_vocabulary((tiny_model_dir(tmp_path) / "tokenizer.json").read_text(), VOCAB)
    with mmap.mmap(-1, 4 * mask_words(VOCAB)) as memory:
        matchers = worker.Matchers(vocabulary, memory, mask_words(VOCAB))
        meter = matchers._meter = _Meter()
        clock = itertools.count()
        monkeypatch.setattr(worker, "time", SimpleNamespace(process_time=lambda: next(clock) * 0.25))
        matchers.answer(Open(1, "regex", "[a-z]{9}", 0))
        for letter in b"abc":
            assert isinstance(matchers.answer(Advance(1, (letter,))), Masked)
    per_token = limits.CPU_PER_TOKEN_S
    assert meter.cpu_s == pytest.approx([limits.CPU_S - 0.25 * at + per_token * max(0, at - 1) for at in range(4)])


def test_a_grammar_that_grows_too_large_while_it_runs_is_at_fault(pool):
    properties = {f"k{number}": {"type": "integer"} for number in range(1500)}
    pool.open("a", Grammar("json_schema", json.dumps({"type": "object", "properties": properties})), now())
    outcomes(pool)
    found = []
    for token in b'{"k1':
        pool.advance("a", (token,), now())
        found += outcomes(pool)
        if isinstance(found[-1], Broken):
            break
    assert found[-1].own
    assert "items" in found[-1].why


def test_more_answers_than_slots_are_refused_and_a_slot_comes_back(pool):
    for name in "abc":
        pool.open(name, LONG, now())
    found = outcomes(pool, 3)
    assert {outcome.name: type(outcome) for outcome in found} == {"a": Mask, "b": Mask, "c": Broken}
    pool.close("a", now())
    pool.open("d", LONG, now())
    assert [type(outcome) for outcome in outcomes(pool)] == [Mask]


def test_verdicts_are_remembered(pool):
    pool.try_out("x", LONG, now())
    pool.try_out("y", Grammar("regex", "("), now())
    first = outcomes(pool, 2)
    assert (len(pool.verdicts), first[0].why) == (2, None)
    pool.try_out("x2", LONG, now())
    pool.try_out("y2", Grammar("regex", "("), now())
    assert [outcome.why for outcome in pool.at_hand()] == [outcome.why for outcome in sorted(first)]


def test_a_stopped_worker_is_replaced_after_its_timeout(pool):
    pool.try_out("warm", LONG, now())
    outcomes(pool)
    os.kill(pool.pids[0], signal.SIGSTOP)
    stopped = pool.pids[0]
    pool.try_out("x", Grammar("regex", "x"), now())
    pool.push(now())
    assert pool.outcomes(now()) == []
    with capture_logs():
        found = pool.outcomes(now() + 21_000)
        while not found:
            pool._poll.poll(0.05)
            found = pool.outcomes(now() + 21_000)
    assert [(type(outcome), "20 s" in outcome.why) for outcome in found] == [(Tried, True)]
    assert pool.verdicts.why_not(Grammar("regex", "x").digest) is None, "the clock says nothing about a grammar: it may be tried again"
    assert not Path(f"/proc/{stopped}").exists()


def test_a_late_mask_of_a_closed_matcher_reaches_no_other_row(tmp_path):
    pool = Pool(tiny_model_dir(tmp_path) / "tokenizer.json", VOCAB, serving=2, slots=3)
    try:
        for name in "abc":  # a and c are the first serving worker's, b is the second one's
            pool.open(name, Grammar("regex", f"{name}[xy]z"), now())
        outcomes(pool, 3)
        slow = pool._workers[1]
        os.kill(slow.pid, signal.SIGSTOP)
        pool.advance("a", (ord("a"),), now())
        pool.push(now())
        for name in "ba":
            pool.close(name, now())
        pool.open("d", Grammar("regex", "d[xy]z"), now())
        [first] = outcomes(pool)
        assert (first.name, ids(first)) == ("d", [ord("d")])
        os.kill(slow.pid, signal.SIGCONT)
        while slow.pending:
            pool._poll.poll(0.05)
            assert pool.outcomes(now()) == []
        slot = next(matcher.slot for matcher in pool._matchers.values() if matcher.name == "d")
        assert (pool._masks[slot] == first.words).all(), "another worker's late job wrote into it"
    finally:
        pool.stop()


def test_slots_are_counted_over_all_workers(tmp_path):
    pool = Pool(tiny_model_dir(tmp_path) / "tokenizer.json", VOCAB, serving=2, slots=3)
    try:
        for name in "abcd":
            pool.open(name, LONG, now())
        broken = [outcome for outcome in outcomes(pool, 4) if isinstance(outcome, Broken)]
        assert [(outcome.name, "3 answers" in outcome.why) for outcome in broken] == [("d", True)]
    finally:
        pool.stop()


def test_a_replica_without_a_tokenizer_says_so_to_each(tmp_path):
    pool = Pool(tmp_path / "nothing.json", VOCAB, serving=1, slots=2)
    with capture_logs() as logs:
        pool.try_out("x", LONG, now())
        assert outcomes(pool) == [Tried("x", "this replica cannot use grammars")]
    assert "nothing.json" in logs[0]["unfit"]
    assert not pool.verdicts
    pool.stop()


def test_a_machine_without_room_for_a_process_costs_the_request_only(pool, monkeypatch):
    def full(*_args, **_options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with capture_logs(), monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", full)
        gc.collect()  # what earlier tests left in cycles has descriptors too
        before = len(list(Path("/proc/self/fd").iterdir()))
        pool.try_out("x", LONG, now())
        pool.open("y", LONG, now())
        assert [(type(outcome), outcome.why) for outcome in pool.outcomes(now())] == [
            (Tried, "this replica cannot use grammars"),
            (Broken, "this replica cannot use grammars"),
        ]
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    pool.try_out("x", LONG, now())
    assert outcomes(pool) == [Tried("x", None)]


@pytest.mark.deep
def test_an_answer_whose_worker_dies_again_and_again_ends_with_one_error(tmp_path):
    steps, killed = threading.Semaphore(0), set()  # the device waits for each of its steps: no answer runs away from who kills

    def one_more_step():
        steps.release()
        return bool(engine.tokens("c"))

    def one_more_death():
        for pid in set(engine.pids[1:]) - killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        steps.release()
        return engine._end("c", 0) is not None

    device = SimulatedWorker(LIMITS, 1.0, lambda _: steps.acquire())
    with local_engine(tmp_path, lambda: device) as engine, capture_logs(), contextlib.ExitStack() as last:
        last.callback(steps.release, 10_000)
        engine.send(Submit("c", (1,), Sampling(1900), grammar=LONG), Submit("p", (2,), Sampling(1500)))
        engine.until(one_more_step)
        engine.until(one_more_death)
        end = engine.end_of("c")
        assert (end.finish_reason, end.error) == ("error", "the grammar cannot be followed any further: its worker was lost")
        steps.release(10_000)
        assert engine.end_of("p").finish_reason == "length"
        assert tuple(engine.tokens("p")) == expected_tokens((2,), 1500, VOCAB)


@pytest.mark.parametrize(
    ("kind", "text"), [pytest.param(*bomb, marks=pytest.mark.deep if bomb in SLOW_BOMBS else ()) for bomb in (*SLOW_BOMBS, *BOMBS)]
)
def test_exploding_grammars_end_in_bounded_time(shared, kind, text, monkeypatch):
    """A verdict each, within the CPU that one grammar may take (by the clock it depends on who else computes). The worker stays."""
    monkeypatch.setattr(limits, "PATIENCE_S", 240.0)  # it is CPU that is to run out
    with capture_logs():
        shared.try_out("warm", Grammar("regex", f"[a-z]{{{len(text)}}}"), now())
        outcomes(shared)
        pid = shared.pids[0]
        spent = _cpu_s(pid)
        shared.try_out("bomb", Grammar(kind, text), now())
        [verdict] = outcomes(shared)
    assert isinstance(verdict, Tried)
    assert shared.pids[0] == pid
    assert _cpu_s(pid) - spent < limits.COMPILE_CPU_S + 0.2
    assert (kind, text) not in SLOW_BOMBS or "0.5 s of CPU" in verdict.why
    assert shared.verdicts.why_not(Grammar(kind, text).digest) == verdict.why


def _cpu_s(pid):
    """Of the process and its forks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_a_fork_says_what_it_found_or_how_it_ended():
    forks = "import signal\nfrom pagoda_daemon.structured.forks import in_fork\n"
    tries = ("lambda: b'x'", "lambda: signal.raise_signal(signal.SIGKILL)", "lambda: signal.raise_signal(signal.SIGTERM)", "lambda: 1 / 0")
    done = run(f"{forks}print([in_fork(work) for work in ({', '.join(tries)})])")
    assert done.stdout.strip() == "[(b'x', 0), (b'', -9), (b'', 1), (b'', 1)]"


def test_the_kernel_ends_a_trial_and_the_worker_goes_on():
    forks = "from pagoda_daemon.structured.forks import in_fork\ndef spin():\n  _Meter().bound(0.05, 1 << 30)\n  while True: pass\n"
    assert run(f"{forks}print(in_fork(spin))").stdout.strip() == f"(b'', {-signal.SIGPROF})"


@pytest.mark.parametrize(
    ("code", "why", "ours"), [(-9, "its worker was lost", True), (-11, "256 MiB", False), (-27, "0.5 s of CPU", False)]
)
def test_a_trial_that_is_killed_by_others_is_not_the_grammars_fault(tmp_path, monkeypatch, code, why, ours):
    vocabulary = read_vocabulary((tiny_model_dir(tmp_path) / "tokenizer.json").read_text(), VOCAB)
    monkeypatch.setattr(worker, "in_fork", lambda _work: (b"", code))
    with mmap.mmap(-1, 4 * mask_words(VOCAB)) as memory:
        verdict = worker.Matchers(vocabulary, memory, mask_words(VOCAB)).tried(Open(1, "regex", "x", 0, trial=True))
    assert why in verdict.why
    assert verdict.ours == ours


def test_a_trial_has_less_cpu_time_than_the_same_grammar_in_an_answer(tmp_path):
    vocabulary = read_vocabulary((tiny_model_dir(tmp_path) / "tokenizer.json").read_text(), VOCAB)
    with mmap.mmap(-1, 4 * mask_words(VOCAB)) as memory:
        matchers = worker.Matchers(vocabulary, memory, mask_words(VOCAB))
        meter = matchers._meter = _Meter()
        matchers.answer(Open(1, "regex", "x", 0, trial=True))
        matchers.answer(Open(2, "regex", "x", 0))
    assert meter.cpu_s == [limits.COMPILE_CPU_S, limits.CPU_S]


@pytest.mark.parametrize(
    ("signalled", "remembered"), [(signal.SIGPROF, True), (signal.SIGSEGV, True), (signal.SIGABRT, False), (signal.SIGKILL, False)]
)
def test_a_grammar_that_kills_a_worker_of_answers_is_remembered(pool, signalled, remembered):
    """It passed its trial, and would take the next worker along as well. SIGABRT may mean memory, which the answers of a worker share."""
    grammar = Grammar("regex", "abc")
    pool.verdicts.note(grammar.digest, None)
    pool.open("a", grammar, now())
    outcomes(pool)
    serving = pool._workers[1]
    os.kill(serving.pid, signal.SIGSTOP)
    pool.advance("a", (ord("a"),), now())
    pool.push(now())
    os.kill(serving.pid, signalled)
    os.kill(serving.pid, signal.SIGCONT)
    with capture_logs():
        [end] = outcomes(pool)
    assert isinstance(end, Mask if signalled == signal.SIGKILL else Broken)
    assert (pool.verdicts.why_not(grammar.digest) is not None, pool.verdicts.passed(grammar.digest)) == (remembered, not remembered)
