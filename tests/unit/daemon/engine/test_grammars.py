"""Answers under a grammar, in an engine of this process with real grammar workers and a device that only draws tokens."""

import json
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
from pagoda_daemon.core.messages import Abort, Grammar, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from pagoda_daemon.structured import limits
from structlog.testing import capture_logs
from support.engine.constrained import LIMITS, drawn_schema, local_engine, schema_grammar
from support.engine.toy_model import EOS, VOCAB

BOMB = Grammar("json_schema", '{"type":"integer","multipleOf":1048573}')  # its automaton has a state for every rest: seconds of CPU
THREE = Grammar("regex", "[a-z]{3}", (EOS,))


def plain(name, seed, count=40):
    return Submit(name, (seed, 7, 9), Sampling(count))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with local_engine(tmp_path_factory.mktemp("grammars")) as started:
        yield started


def test_an_answer_follows_its_schema_and_stops(engine):
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 17}}, "required": ["a"]}
    engine.send(
        Submit("s1", (1, 2), Sampling(600, stop_token_ids=(EOS,)), grammar=schema_grammar({**schema, "additionalProperties": False}))
    )
    assert engine.end_of("s1").finish_reason == "stop"
    jsonschema.validate(json.loads(engine.said("s1")), schema)


@pytest.mark.parametrize(
    ("grammar", "accepted"),
    [
        (Grammar("regex", "[0-9]{3}-[a-c]{2}"), r"[0-9]{3}-[a-c]{2}"),
        (Grammar("regex", "^ab?c$"), "ab?c"),
        (Grammar("choice", '["yes","no \\"q\\"\\n","ä/"]'), 'yes|no "q"\\n|ä/'),
        (Grammar("grammar", 'start: "a" /[0-9]{1,3}/ ("x" | "y")'), "a[0-9]{1,3}[xy]"),
        (Grammar("grammar", 'root ::= "a" [0-9] x\nx ::= "z" | "y"'), "a[0-9][yz]"),
    ],
)
def test_every_kind_of_grammar_is_followed(engine, grammar, accepted):
    name = f"kind-{grammar.kind}-{accepted}"
    engine.send(Submit(name, (3, len(accepted)), Sampling(100), grammar=grammar))
    assert engine.end_of(name).finish_reason == "stop"
    assert re.fullmatch(accepted, engine.said(name))


def test_max_tokens_cuts_a_grammar(engine):
    engine.send(Submit("cut", (1,), Sampling(4), grammar=Grammar("regex", "[a-z]{50}")))
    assert (engine.end_of("cut").finish_reason, len(engine.said("cut"))) == ("length", 4)


def test_the_end_token_comes_only_where_the_grammar_may_end(engine):
    """Every id is as likely: without a mask for it the end token would come in one of three steps at the first place."""
    for seed in range(20):
        grammar = Grammar("regex", "(ab){2,4}", (EOS,))
        engine.send(Submit(f"eos{seed}", (seed, 1), Sampling(20, stop_token_ids=(EOS,)), grammar=grammar))
    said = [engine.said(f"eos{seed}") for seed in range(20) if engine.end_of(f"eos{seed}").finish_reason == "stop"]
    assert len(said) == 20
    assert set(said) <= {"abab", "ababab", "abababab"}
    assert len(set(said)) > 1


def test_ignore_eos_leaves_the_end_to_the_grammar(engine):
    engine.send(Submit("ignored", (1,), Sampling(50), grammar=Grammar("regex", "(ab){2,4}", (EOS,))))
    assert (engine.end_of("ignored").finish_reason, engine.said("ignored")) == ("stop", "abababab")


def test_a_complete_grammar_ends_before_min_tokens(engine):
    engine.send(Submit("early", (1,), Sampling(50, min_tokens=20, stop_token_ids=(EOS,)), grammar=THREE))
    assert (engine.end_of("early").finish_reason, len(engine.said("early"))) == ("stop", 3)


def test_each_of_several_answers_has_a_matcher(engine):
    engine.send(Submit("n", (1, 5), Sampling(600, stop_token_ids=(EOS,)), n=3, grammar=schema_grammar(drawn_schema(5))))
    for index in range(3):
        assert engine.end_of("n", index).finish_reason == "stop"
        jsonschema.validate(json.loads(engine.said("n", index)), drawn_schema(5))


def test_a_bad_grammar_is_refused_and_says_why(engine):
    engine.send(Submit("bad", (1,), Sampling(5), grammar=Grammar("regex", "(?=x)y")))
    end = engine.end_of("bad")
    assert (end.finish_reason, end.refusal.reason) == ("refused", "grammar")
    assert "look-around" in end.refusal.message


def test_an_aborted_trial_leaves_nothing(engine):
    engine.send(Submit("warm", (1,), Sampling(5), grammar=THREE))
    engine.end_of("warm")
    os.kill(engine.pids[0], signal.SIGSTOP)
    engine.send(Submit("gone", (1,), Sampling(5), grammar=Grammar("regex", "[a-z]{3}[0-9]")), Abort("gone"), plain("heard", 1, 5))
    engine.end_of("heard")
    os.kill(engine.pids[0], signal.SIGCONT)
    engine.send(Submit("after", (1,), Sampling(5), grammar=Grammar("regex", "[a-z]{2}[0-9]")))
    assert engine.end_of("after").finish_reason == "stop"
    assert engine.end_of("gone").finish_reason == "abort"
    assert not engine.engine._state.compilations
    assert engine.tokens("gone") == []


@pytest.mark.deep
def test_plain_rows_go_on_while_a_grammar_is_tried(engine, monkeypatch):
    """The worker that tries it does not get to it until three streams beside it are whole."""
    engine.send(Submit("before", (1,), Sampling(5), grammar=Grammar("regex", "[b-d]{3}")))
    engine.end_of("before")
    before = engine.pids
    monkeypatch.setattr(limits, "PATIENCE_S", 240.0)  # it is CPU that is to run out
    os.kill(before[0], signal.SIGSTOP)
    try:
        engine.send(Submit("bomb", (1,), Sampling(5), grammar=BOMB))
        for stream in range(3):
            engine.send(plain(name := f"beside{stream}", stream, 200))
            assert engine.end_of(name).finish_reason == "length"
            assert tuple(engine.tokens(name)) == expected_tokens((stream, 7, 9), 200, VOCAB)
        assert not any(row.request_id == "bomb" for row in engine.outputs)
    finally:
        os.kill(before[0], signal.SIGCONT)
    end = engine.end_of("bomb")
    assert end.refusal.reason == "grammar"
    assert "0.5 s of CPU" in end.refusal.message
    engine.send(Submit("next", (1,), Sampling(5), grammar=Grammar("regex", "[b-d]{2}")))
    assert engine.end_of("next").finish_reason == "stop"
    assert engine.pids == before, "no worker was touched: only the fork that tried it ended"


def test_a_grammar_that_is_known_to_be_too_large_costs_nothing_the_second_time(engine, monkeypatch):
    monkeypatch.setattr(limits, "PATIENCE_S", 240.0)  # it is CPU that is to run out: only that is its own fault, and remembered
    engine.send(Submit("once", (1,), Sampling(5), grammar=BOMB))
    engine.end_of("once")
    before = engine.pids
    engine.send(Submit("again", (1,), Sampling(5), grammar=BOMB))
    assert engine.end_of("again").refusal.reason == "grammar"
    assert engine.pids == before


@pytest.mark.deep
def test_killed_workers_cost_no_answer(engine):
    """Every worker is killed in the middle of ten answers: their matchers are made anew from what was said so far."""
    schemas = {f"k{seed}": drawn_schema(1000 + seed) for seed in range(10)}
    for name, schema in schemas.items():
        engine.send(Submit(name, (len(name), 1), Sampling(900, stop_token_ids=(EOS,)), grammar=schema_grammar(schema)))
    for seen in range(1, 4):
        engine.until(lambda seen=seen: sum(bool(engine.tokens(name)[4 * seen :]) for name in schemas) >= 3)
        for pid in engine.pids:
            with suppress(ProcessLookupError):  # of the time before, and just found dead
                os.kill(pid, signal.SIGKILL)
    for name, schema in schemas.items():
        assert engine.end_of(name).finish_reason == "stop", engine.end_of(name)
        jsonschema.validate(json.loads(engine.said(name)), schema)


def test_without_workers_a_grammar_is_refused_and_the_engine_goes_on(tmp_path: Path):
    def none(*_):
        raise OSError(24, "Too many open files")

    with capture_logs(), local_engine(tmp_path, pools=none) as engine:
        engine.send(Submit("x", (1,), Sampling(5), grammar=THREE), plain("p", 1))
        assert engine.end_of("x").refusal.reason == "grammar"
        assert engine.end_of("p").finish_reason == "length"


def test_nothing_is_left_of_an_engine(tmp_path: Path):
    with local_engine(tmp_path) as engine:
        engine.send(Submit("x", (1,), Sampling(5), grammar=THREE))
        engine.end_of("x")
        pids = engine.pids
        assert len(pids) == 2
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.deep
def test_a_hundred_schemas_beside_plain_rows(tmp_path: Path):
    plans = []

    class Recorded(SimulatedWorker):
        def execute(self, plan):
            plans.append(plan)
            return super().execute(plan)

    schemas = {f"c{seed}": drawn_schema(seed) for seed in range(120)}
    assert len({json.dumps(schema) for schema in schemas.values()}) == 120
    with local_engine(tmp_path, lambda: Recorded(LIMITS)) as engine:
        for at, (name, schema) in enumerate(schemas.items()):
            engine.send(Submit(name, (at, 3), Sampling(1500, stop_token_ids=(EOS,)), grammar=schema_grammar(schema)))
        for at in range(8):  # as each is begun when a schema's answer is over, they stand beside all kinds of them
            assert engine.end_of(f"c{10 * at}").finish_reason == "stop"
            engine.send(plain(f"p{at}", at, 600))
        for name, schema in schemas.items():
            assert engine.end_of(name).finish_reason == "stop", (name, engine.said(name))
            jsonschema.validate(json.loads(engine.said(name)), schema)
        for at in range(8):
            engine.end_of(f"p{at}")
            assert tuple(engine.tokens(f"p{at}")) == expected_tokens((at, 7, 9), 600, VOCAB)
    mixed = [plan for plan in plans if plan.sampling.masks is not None and plan.sampling.masks.at.size < plan.sample.sum()]
    assert len(mixed) > 100, "hardly any step had both"
