"""Fields that clients of vLLM and of OpenAI send, as a replica answers them: its own front and scheduler over a simulated device."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from pagoda_daemon.api.openai.replies import Answer
from pagoda_daemon.api.routes.completions import _best
from pagoda_daemon.api.routes.embeddings import _shortened
from pagoda_daemon.api.routes.prompts import infilled
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.messages import TokenLogprob
from pagoda_daemon.text.answer import Piece, Scored
from pagoda_daemon.text.infill import FORMS, infill_of
from pagoda_daemon.text.tokens import ChatShape, ModelText
from support.engine.toy_model import tiny_model_dir
from support.judges.refusals import CHAT, COMPLETIONS, chat, completion, error_of
from support.servers.local_replica import local_replica

USAGE = {"include_usage": True, "continuous_usage_stats": True}


def events(body: bytes) -> list[dict]:
    return [json.loads(part[6:]) for part in body.split(b"\n\n") if part.startswith(b"data: {")]


@pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (COMPLETIONS, completion)])
async def test_every_chunk_has_the_usage_so_far(path, make):
    async with local_replica() as replica:
        _, whole = await replica.post(path, make(max_tokens=4, ignore_eos=True, stream=True, stream_options=USAGE))
        *chunks, last = (event["usage"] for event in events(whole))
        _, plain = await replica.post(path, make(max_tokens=4, ignore_eos=True, stream=True, stream_options={"include_usage": True}))
    answered = [usage["completion_tokens"] for usage in chunks]
    assert answered == sorted(answered)
    assert {0, 1, 2, 3, 4} >= set(answered) >= {1, 4}
    assert {usage["prompt_tokens"] for usage in chunks} == {last["prompt_tokens"]}
    assert last["completion_tokens"] == 4
    assert {event["usage"] for event in events(plain)[:-1]} == {None}, "without it, only the last chunk"


async def test_a_prompt_is_cut_to_its_last_tokens():
    async with local_replica() as replica:
        for wished, kept in ((3, 3), (-1, 512 - 4), (600, None)):
            status, _ = await replica.post(COMPLETIONS, completion(prompt="abc" * 600, truncate_prompt_tokens=wished))
            assert status == (200 if kept else 400), wished
            if kept:
                assert replica.engine.submitted[-1].prompt == tuple(replica.text.encode("abc" * 600, 10_000))[-kept:]
        _, answer = await replica.post(COMPLETIONS, completion(prompt="abcdef", truncate_prompt_tokens=2, echo=True, max_tokens=0))
        assert answer["choices"][0]["text"] == "ef"
        _, answer = await replica.post(COMPLETIONS, completion(truncate_prompt_tokens=0))
        assert error_of(answer)["param"] == "truncate_prompt_tokens"
        await replica.at_rest()


async def test_of_several_answers_the_best_are_returned_and_all_are_counted():
    async with local_replica() as replica:
        _, answer = await replica.post(COMPLETIONS, completion(best_of=3, n=2, max_tokens=4, ignore_eos=True, seed=1))
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert {choice["logprobs"] for choice in answer["choices"]} == {None}, "they were not asked for"
        assert answer["usage"]["completion_tokens"] == 12
        await replica.at_rest()


IDS = {"return_token_ids": True, "ignore_eos": True, "n": 2}


async def test_a_chat_shows_the_ids_of_its_prompt_and_of_each_answer():
    """Joined over a stream's chunks they are those of the whole answer. Text decoded from them is the answer's."""
    async with local_replica() as replica:
        _, whole = await replica.post(CHAT, chat(**IDS))
        prompt = replica.engine.submitted[-1].prompt
        _, body = await replica.post(CHAT, chat(**IDS, stream=True))
        _, silent = await replica.post(CHAT, chat(stream=True))
    assert tuple(whole["prompt_token_ids"]) == prompt
    answers = {choice["index"]: choice["token_ids"] for choice in whole["choices"]}
    assert {len(ids) for ids in answers.values()} == {4}
    assert all(replica.text.decode(choice["token_ids"]) == choice["message"]["content"] for choice in whole["choices"])
    chunks = events(body)
    assert [tuple(chunk["prompt_token_ids"]) for chunk in chunks if "prompt_token_ids" in chunk] == [prompt] * 2, "with the roles"
    assert answers == joined_ids(chunks)
    assert b"token_ids" not in silent


async def test_a_completion_shows_the_ids_of_each_prompt_and_answer():
    fields = completion(**IDS, prompt=["once", "twice"])
    async with local_replica() as replica:
        _, whole = await replica.post(COMPLETIONS, fields)
        prompts = [message.prompt for message in replica.engine.submitted[-2:] for _ in range(2)]
        _, body = await replica.post(COMPLETIONS, fields | {"stream": True})
        _, scored = await replica.post(COMPLETIONS, completion(return_token_ids=True, echo=True, max_tokens=0))
    assert [tuple(choice["prompt_token_ids"]) for choice in whole["choices"]] == prompts
    first = {
        choice["index"]: choice["prompt_token_ids"]
        for one in reversed(events(body))
        for choice in one["choices"]
        if "prompt_token_ids" in choice
    }
    assert [tuple(first[index]) for index in range(4)] == prompts
    assert {choice["index"]: choice["token_ids"] for choice in whole["choices"]} == joined_ids(events(body))
    assert scored["choices"][0]["token_ids"] == []


async def test_no_id_is_lost_if_text_waits_for_a_stop_string():
    fields = chat(return_token_ids=True, max_tokens=40, stop=["never"], min_tokens=40, logprobs=True)
    async with local_replica() as replica:
        _, whole = await replica.post(CHAT, fields)
        _, body = await replica.post(CHAT, fields | {"stream": True})
    assert {0: whole["choices"][0]["token_ids"]} == joined_ids(events(body))
    assert len(whole["choices"][0]["token_ids"]) == len(whole["choices"][0]["logprobs"]["content"]) == 40


def joined_ids(chunks: list[dict]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        found.setdefault(choice["index"], []).extend(choice.get("token_ids", ()))
    return found


def test_the_best_answer_is_the_likeliest_by_token():
    def answer(*logprobs: float) -> Answer:
        return Answer(Piece(str(logprobs), tuple(Scored(0, 0, TokenLogprob(value, 1, ())) for value in logprobs)), "stop")

    first = [answer(-1.0, -1.0), answer(-0.5, -1.0, -1.5, -0.5), answer(-3.0)]
    second = [answer(-2.0), answer(-1.0), answer(-4.0)]
    found = _best([*first, *second], 3, 2)
    assert found == [first[1], first[0], second[1], second[0]]
    assert _best(first, 3, 3) == first


async def test_a_suffix_needs_a_model_that_was_trained_for_it():
    async with local_replica() as replica:
        _, answer = await replica.post(COMPLETIONS, completion(suffix="end"))
    assert (error_of(answer)["param"], error_of(answer)["code"]) == ("suffix", "unsupported_parameter")


def test_prefix_and_suffix_stand_around_the_models_own_tokens():
    qwen, deepseek = (infill_of(set(form).__contains__) for form in (FORMS[0], FORMS[3]))
    assert infill_of({FORMS[0].before, FORMS[0].after}.__contains__) is None
    assert infilled("a", "b", SimpleNamespace(infill=qwen)) == "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    assert infilled("a", "b", SimpleNamespace(infill=deepseek)) == "<｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>"
    with pytest.raises(BadRequest, match="only with a prompt of text"):
        infilled((1, 2), "b", SimpleNamespace(infill=qwen))


def test_an_embedding_is_cut_and_its_length_is_1_again():
    vector = np.asarray([3.0, 4.0, 12.0], "<f4")
    assert np.frombuffer(_shortened(vector.tobytes(), 2), "<f4").tolist() == pytest.approx([0.6, 0.8])
    assert _shortened(vector.tobytes(), None) == vector.tobytes()
    with pytest.raises(BadRequest, match="dimensions must be between 1 and 3 for this model, got 4"):
        _shortened(vector.tobytes(), 4)


def test_a_template_reads_the_variables_of_a_request_and_keeps_its_own(tmp_path):
    folder = tiny_model_dir(tmp_path / "toy")
    (folder / "chat_template.jinja").write_text("{{ enable_thinking }}|{{ messages | length }}|{{ reasoning_effort }}")
    text = ModelText(folder)
    shape = ChatShape(variables=(("enable_thinking", False), ("messages", "x"), ("reasoning_effort", "low")))
    ids = text.encode_chat([{"role": "user", "content": "hi"}], 512, shape)
    assert text.decode(ids) == "False|1|low"
