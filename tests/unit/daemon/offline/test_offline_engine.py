"""The offline engine on the real loop and scheduler in this process, with a device that computes nothing: answers, errors, the end."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest
from pagoda_daemon.core.errors import BadRequest, EngineDied, TooMany
from pagoda_daemon.metrics.records import Record, Ring
from pagoda_daemon.offline import Engine, Sampling
from pagoda_daemon.offline.engine import _conversations, _prompts
from pagoda_daemon.simulated.replicas.text import tiny_model_dir
from pagoda_daemon.text.tokens import ModelText
from support.servers.local_replica import CountedEngine, local_config, local_replica

PATIENCE_S = 300.0
GREEDY = Sampling(max_tokens=6, temperature=0.0)


class Local:
    """An engine on a thread of this process; notes what was done to it."""

    def __init__(self, folder: Path, kind: type[CountedEngine] = CountedEngine, **engine: Any) -> None:
        self.folder, self.kind = folder, kind
        self.config = local_config(folder, engine)
        self.tidied = 0

    def connect(self, replica: Any) -> CountedEngine:
        self.link = self.kind(self.config, replica, 0)
        self.replica = replica
        return self.link

    def text(self) -> ModelText:
        return ModelText(tiny_model_dir(self.folder))

    def tidy(self) -> None:
        self.tidied += 1


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., tuple[Engine, Local]]]:
    made: list[Engine] = []

    def open_one(kind: type[CountedEngine] = CountedEngine, **engine: Any) -> tuple[Engine, Local]:
        local = Local(tmp_path, kind, **engine)
        made.append(Engine.on(local))
        return made[-1], local

    yield open_one
    for engine in made:
        engine.close()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)


async def test_answers_are_those_of_the_served_api_also_where_a_loop_is_running(opened):
    """This test's own loop runs meanwhile, as a notebook's does."""
    prompts = ["a prompt", "another one", "a prompt, longer than a block of sixteen tokens"]
    asked = {"max_tokens": 12, "seed": 7, "temperature": 0.8, "logprobs": 1}
    async with local_replica() as replica:
        answers = [(await replica.post("/v1/completions", {"model": "toy", "prompt": prompt, **asked}))[1] for prompt in prompts]
    engine, _ = opened()
    found = engine.generate(prompts, Sampling(**asked))
    assert [one.text for one in found] == [answer["choices"][0]["text"] for answer in answers]
    assert [one.finish_reason for one in found] == [answer["choices"][0]["finish_reason"] for answer in answers]
    assert [len(one.token_ids) for one in found] == [answer["usage"]["completion_tokens"] for answer in answers]
    assert [one.prompt_tokens for one in found] == [answer["usage"]["prompt_tokens"] for answer in answers]
    scores = [answer["choices"][0]["logprobs"]["token_logprobs"] for answer in answers]
    assert [[score.logprob for score in one.logprobs] for one in found] == scores


def test_more_prompts_than_rows_come_back_in_their_order(opened):
    engine, local = opened(max_concurrency=2)
    prompts = [f"prompt {number}" for number in range(20)]
    found = engine.generate(prompts, GREEDY)
    assert [bytes(one.prompt_token_ids).decode() for one in found] == prompts
    alone = [engine.generate(prompt, GREEDY)[0].token_ids for prompt in prompts[:3]]
    assert [one.token_ids for one in found[:3]] == alone
    assert local.replica.stats.running == 0


def test_each_prompt_may_have_its_own_sampling_and_several_choices(opened):
    engine, _ = opened()
    short, several = engine.generate(["one", "two"], [Sampling(max_tokens=2), Sampling(max_tokens=3, n=3)])
    assert [len(short.token_ids), len(several.choices)] == [2, 3]
    assert {len(choice.token_ids) for choice in several.choices} == {3}
    with pytest.raises(BadRequest, match="one for all prompts or 2"):
        engine.generate(["one", "two"], [GREEDY])


def test_a_conversation_is_written_by_the_template(opened):
    engine, _ = opened()
    messages = [{"role": "user", "content": "hello"}]
    (found,) = engine.chat(messages, Sampling(max_tokens=4))
    assert found.prompt_token_ids == engine.text.encode_chat(messages, engine.max_model_len)
    assert len(engine.chat([messages, messages], Sampling(max_tokens=4))) == 2


def test_a_prompt_is_scored_and_not_continued(opened):
    engine, _ = opened()
    (found,) = engine.score("abcd", top=2)
    first, *others = found.prompt_logprobs
    assert first is None
    assert [(one.token_id, one.token, len(one.top)) for one in others] == [(ord(char), char, 2) for char in "bcd"]
    assert (found.text, found.token_ids, found.prompt_tokens) == ("", (), 4)


def test_what_the_cache_knew_is_counted(opened):
    engine, _ = opened(block_size=16)
    first, second = (engine.generate("a" * 40, GREEDY)[0].cached_tokens for _ in range(2))
    assert first == 0
    assert 32 <= second < 40, "all whole blocks, and never the last token"


def test_a_refused_prompt_is_named_and_nothing_is_left_of_the_others(opened):
    engine, local = opened(max_model_len=32)
    with pytest.raises(BadRequest, match="maximum context length is 32") as caught:
        engine.generate(["a", "b" * 40, "c"], GREEDY)
    assert caught.value.__notes__ == ["This is prompt 1 of 3, counted from 0."]
    until(lambda: not local.link._streams)
    assert len(engine.generate("a", GREEDY)[0].token_ids) == 6


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (Sampling(temperature=-1.0), "temperature"),
        (Sampling(temperature=float("nan")), "temperature"),
        (Sampling(max_tokens="many"), "max_tokens"),  # type: ignore[arg-type]
        (Sampling(response_format={"type": "poem"}), "response_format.type"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_field_is_refused_by_its_name_as_over_http(opened, sampling, param):
    engine, _ = opened()
    with pytest.raises(BadRequest) as caught:
        engine.generate("a", sampling)
    assert caught.value.param == param


def test_a_lone_surrogate_is_a_bad_prompt(opened):
    engine, _ = opened()
    with pytest.raises(BadRequest, match="lone surrogate"):
        engine.generate("\ud83d", GREEDY)


def test_an_unknown_field_of_a_message_is_reported(opened):
    engine, _ = opened()
    with pytest.warns(UserWarning, match=r"messages\[\]\.mood"):
        engine.chat([{"role": "user", "content": "hello", "mood": "good"}], GREEDY)


def test_a_request_that_finds_no_room_is_tried_again(opened, monkeypatch):
    refused = threading.Event()

    class Full(CountedEngine):
        def submit(self, message: Any, joined: Any = None) -> Any:
            if len(self._streams) >= 2:
                refused.set()
                raise TooMany("the queue is full", 1.0)
            return super().submit(message, joined)

        def _pause(self, seconds: float) -> None:
            if self.submitted:  # neither of the two ends before the third was refused, however late that comes
                refused.wait(PATIENCE_S)
            super()._pause(seconds)

    monkeypatch.setattr("pagoda_daemon.offline.answering._AGAIN_S", 0.001)
    engine, _ = opened(Full)
    assert len(engine.generate(["a", "b", "c"], GREEDY)) == 3
    assert refused.is_set()


def test_a_request_that_finds_no_room_alone_is_refused(opened):
    class Full(CountedEngine):
        def submit(self, *_: Any) -> Any:
            raise TooMany("the queue is full", 1.0)

    engine, _ = opened(Full)
    with pytest.raises(TooMany):
        engine.generate("a", GREEDY)


def test_ctrl_c_ends_the_call_and_not_the_engine(opened):
    engine, local = opened()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored

    def press() -> None:
        until(lambda: len(local.link.submitted) == 2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    pressing = threading.Thread(target=press)
    try:
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            engine.generate(["a", "b"], Sampling(max_tokens=400, ignore_eos=True))
    finally:
        pressing.join()
        signal.signal(signal.SIGINT, before)
    until(lambda: len(local.link.aborted) == 2)
    assert len(engine.generate("a", GREEDY)[0].token_ids) == 6


def test_an_engine_that_dies_fails_what_runs_and_what_comes(opened):
    class Mortal(CountedEngine):
        async def run(self) -> None:
            while len(self.submitted) < 2:
                await asyncio.sleep(0.001)
            raise EngineDied("the engine process ended with signal 9")

    engine, _ = opened(Mortal)
    for _ in range(2):
        with pytest.raises(EngineDied, match="signal 9"):
            engine.generate(["a", "b"], Sampling(max_tokens=400, ignore_eos=True))


def test_an_engine_that_never_loads_is_reported_when_it_is_opened(tmp_path):
    class Stillborn(CountedEngine):
        async def run(self) -> None:
            raise EngineDied("no weights")

        def _take(self, message: Any) -> None:
            pass

    local = Local(tmp_path, Stillborn)
    with pytest.raises(EngineDied, match="no weights"):
        Engine.on(local)
    assert local.tidied == 1


def test_close_leaves_no_thread_and_no_process_and_is_idempotent(tmp_path):
    before = set(threading.enumerate())
    local = Local(tmp_path)
    with Engine.on(local) as engine:
        engine.chat([{"role": "user", "content": "hello"}], GREEDY)
        (worker,) = (one for template in engine.text._templates.values() for one in template._workers)
        assert worker._process.poll() is None
    engine.close()
    assert worker._process.poll() is not None
    assert local.tidied == 1
    until(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(EngineDied, match="was closed"):
        engine.generate("a", GREEDY)


def test_an_engine_without_references_is_closed(tmp_path):
    local = Local(tmp_path)
    engine = Engine.on(local)
    del engine
    assert local.tidied == 1


def test_the_bar_counts_each_prompt(opened, capsys):
    engine, _ = opened()
    engine.generate(["a", "b", "c"], GREEDY, progress=True)
    assert "3/3" in capsys.readouterr().err
    engine.generate(["a", "b", "c"], GREEDY)
    assert capsys.readouterr().err == "", "stderr is no terminal here"


def test_every_field_of_sampling_is_the_apis():
    names = set(Sampling.__struct_fields__)
    assert names <= set(CompletionRequest.__struct_fields__)
    assert names - {"logprobs"} <= set(ChatRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("given", "count"), [("text", 1), ([1, 2], 1), (["a", "b"], 2), ([[1], [2, 3]], 2), (["a", [1]], 2), ([], 0), ("", 1)]
)
def test_what_counts_as_one_prompt(given, count):
    assert len(_prompts(given)) == count


def test_what_counts_as_one_conversation():
    message = {"role": "user", "content": "hello"}
    assert [_conversations([message, message]), _conversations([[message], [message]])] == [[[message, message]], [[message], [message]]]


def test_no_prompts_no_results(opened):
    engine, _ = opened()
    assert engine.generate([]) == []


def test_each_prompt_is_a_request_of_its_own_that_can_be_dropped(opened):
    engine, local = opened()
    engine.generate(["a", "b", "c"], GREEDY)
    recent = Ring(most=2)
    for message in local.link.submitted:
        recent.add(Record.of(message, 0.0, 0.0))
    assert len(recent) == 2
