"""`pagoda-daemon bench serve`: flags and data sets, and whole runs against a front in this process, whose counts are known exactly."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest
from pagoda_daemon.bench import client, command, datasets, load
from pagoda_daemon.bench.datasets import Lengths, Sample
from pagoda_daemon.bench.flags import parse
from pagoda_daemon.bench.load import Load, run, session
from pagoda_daemon.bench.statistics import Outcome
from pagoda_daemon.core.errors import ConfigRejected, NotStarted
from support.engine.toy_model import tiny_model_dir
from support.servers.local_replica import NAME, local_replica


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_model_dir(tmp_path_factory.mktemp("toy") / NAME)


def flags(url, *more):
    return parse(["serve", "--base-url", url, "--num-prompts", "12", "--disable-tqdm", "--ready-check-timeout-sec", "0", *more])


async def test_a_run_of_random_prompts_counts_what_the_engine_computed(model, tmp_path, capsys):
    lengths = ("--random-input-len", "9", "--random-output-len", "7", "--random-prefix-len", "2")
    saved = ("--save-result", "--result-dir", str(tmp_path / "results"), "--result-filename", "one.json", "--metadata", "card=none")
    async with local_replica() as replica:
        result = await command.bench(flags(replica.url, "--model", str(model), "--served-model-name", NAME, *lengths, *saved))
        submitted = [one for one in replica.engine.submitted if len(one.prompt) == 11]
    assert (result["completed"], result["failed"]) == (12, 0)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (12 * 11, 12 * 7)
    assert len({one.prompt[2:] for one in submitted}) == len(submitted) == 12
    assert len({one.prompt[:2] for one in submitted}) == 1, "all begin with the prefix"
    assert {one.sampling.max_tokens for one in submitted} == {7}
    assert {one.sampling.temperature for one in submitted} == {0.0}
    assert json.loads((tmp_path / "results" / "one.json").read_text()) == result
    assert (result["request_rate"], result["model_id"], result["card"], result["backend"]) == ("inf", NAME, "none", "openai")
    assert result["max_concurrent_requests"] == 12
    assert "Successful requests:                     12" in capsys.readouterr().out


async def test_a_chat_endpoint_is_asked_as_one_and_the_first_model_is_taken(model):
    more = ("--backend", "openai-chat", "--tokenizer", str(model), "--random-input-len", "5", "--random-output-len", "3", "--save-detailed")
    async with local_replica() as replica:
        result = await command.bench(flags(replica.url, *more, "--result-dir", str(model.parent)))
    assert (result["completed"], result["total_output_tokens"], result["model_id"]) == (12, 36, NAME)
    assert (result["output_lens"], result["errors"]) == ([3] * 12, [""] * 12)
    assert [len(gaps) for gaps in result["itls"]] == [2] * 12, "each token is an event"


async def test_max_concurrency_holds_requests_back(model):
    more = ("--model", NAME, "--tokenizer", str(model), "--random-input-len", "4", "--random-output-len", "4", "--max-concurrency", "3")
    async with local_replica() as replica:
        most = 0

        def look() -> None:
            nonlocal most
            most = max(most, replica.front.replica.in_flight)

        replica.front.replica.listeners.append(look)
        result = await command.bench(flags(replica.url, *more))
    assert (result["completed"], most) == (12, 3)


async def test_a_refused_request_is_a_failure_that_is_reported(model, capsys):
    more = ("--model", NAME, "--tokenizer", str(model), "--random-input-len", "600")
    async with local_replica() as replica:
        result = await command.bench(flags(replica.url, *more))
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (0, 12, 0)
    assert "maximum context length" in capsys.readouterr().err


async def test_a_lost_connection_is_a_failure_of_its_request_alone(model):
    samples = [Sample([5, 6, 7], 3, 400)] * 2
    async with local_replica() as replica, session() as opened:
        target = client.Target(f"{replica.url}/v1/completions", NAME, {"ignore_eos": True})

        async def cut() -> None:
            await replica.engine.steps(5)
            replica.front.drop_connections()

        cutting = asyncio.ensure_future(cut())
        found = await run(opened, target, Load(samples, [0.0, 0.0]), lambda: None)
        await cutting
    assert all(one.error and not one.output_tokens for one in found.outcomes)
    assert all(one.stamps for one in found.outcomes), "some text had come"


async def test_an_endpoint_that_refuses_the_first_request_is_not_asked_again(model, capsys):
    async with local_replica() as replica:
        settings = parse(["serve", "--base-url", replica.url + "/v1/", "--model", "absent", "--tokenizer", str(model)])
        with pytest.raises(NotStarted, match=r"refuses the first request: HTTP 404: .*absent"):
            await command.bench(settings)
    assert "waiting for" not in capsys.readouterr().err


@pytest.mark.parametrize("status", [0, 408, 429, 500, 503])
async def test_an_endpoint_that_may_come_yet_is_waited_for_and_its_last_error_shown(status, monkeypatch, capsys):
    errors = iter(["first", "second", ""])

    async def ask(*_):
        return Outcome(0.0, 0.0, error=next(errors), status=status)

    monkeypatch.setattr(load, "ask", ask)
    monkeypatch.setattr(load, "_AGAIN_S", 0.0)
    target, sample = client.Target("http://h/v1/completions", NAME), Sample("a", 1, 1)
    await load.wait_ready(None, target, sample, 600)
    assert capsys.readouterr().err == "waiting for http://h/v1/completions for up to 600 s: first\n", "said once"
    errors = iter(["last"])
    with pytest.raises(NotStarted, match="does not answer: last"):
        await load.wait_ready(None, target, sample, -1)


def test_v1_at_the_end_of_a_base_url_counts_once():
    for given in ("http://h:1/x", "http://h:1/x/", "http://h:1/x/v1", "http://h:1/x/v1/"):
        assert parse(["serve", "--base-url", given]).base_url == "http://h:1/x"


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([b'{"choices":[{"text":"a"}]}'], "the stream ended before [DONE]"),
        ([b'{"choices":[{"text":"a"}]}', b"[DONE]"], "no usage"),
        ([b'{"error":{"message":"overloaded"}}', b"[DONE]"], "overloaded"),
        ([b'{"choices":[{"text":"a"}]}', b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1}}', b"[DONE]"], ""),
        ([b'{"choices":[{"delta":{"reasoning":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}', b"[DONE]"], ""),
    ],
)
def test_an_answer_is_whole_only_with_its_end_and_its_counts(events, said):
    answer = client._Answer(0)
    for event in events:
        answer.take(event, 1.0)
    assert said in answer.missing()
    assert bool(answer.missing()) is bool(said)


def test_tokens_are_those_that_the_server_counted_whatever_the_events_hold():
    answer = client._Answer(0)
    for event in (b'{"choices":[{"text":"several tokens at once"}]}', b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}'):
        answer.take(event, 1.0)
    outcome = answer.outcome(0.5, "")
    assert (outcome.input_tokens, outcome.output_tokens, outcome.stamps, outcome.text) == (3, 4, (1.0,), "several tokens at once")


def test_random_prompts_are_drawn_from_the_seed(model):
    tokenizer = datasets.read_tokenizer(str(model))
    wanted = Lengths(20, 10, 0.5, 0)
    one, same, other = (datasets.drawn(30, wanted, tokenizer, np.random.default_rng(seed), as_text=False) for seed in (1, 1, 2))
    assert one == same != other
    assert {len(sample.prompt) for sample in one} <= set(range(10, 31))
    assert len({sample.output_tokens for sample in one}) > 1
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert special.isdisjoint(token for sample in one for token in sample.prompt)


def test_conversations_are_read_as_vllm_reads_them(model, tmp_path):
    path = tmp_path / "sharegpt.json"
    turns = [("hello, you", "good day"), ("hi", "too short"), ("x" * 2000, "too long"), ("one turn only", None)]
    given = [
        {"conversations": [{"from": "human", "value": said}, *([{"from": "gpt", "value": answer}] if answer else [])]}
        for said, answer in turns
    ]
    path.write_text(json.dumps(given))
    tokenizer = datasets.read_tokenizer(str(model))
    found = datasets.from_sharegpt(path, 2, None, tokenizer, np.random.default_rng(0))
    assert found == [Sample("hello, you", 10, 8)] * 2


def test_lines_of_prompts_are_taken_in_order(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": [1, 2], "output_tokens": 5}\n')
    assert datasets.from_lines(path, 3, None) == [Sample("one", 0, 256), Sample([1, 2], 2, 5), Sample("one", 0, 256)]
    assert [one.output_tokens for one in datasets.from_lines(path, 2, 9)] == [9, 9]


@pytest.mark.parametrize(
    ("text", "said"), [("", "no request"), ("{}\n", "line 1: it must be an object with a prompt"), ("{\n", "line 1 is not JSON")]
)
def test_a_file_that_cannot_be_used_is_reported_with_its_line(tmp_path, text, said):
    path = tmp_path / "lines.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigRejected, match=said):
        datasets.from_lines(path, 1, None)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--request-rate", "0"], "must be above 0"),
        (["--goodput", "itl:5"], "METRIC:MS"),
        (["--percentile-metrics", "ttft,speed"], "'speed'"),
        (["--metric-percentiles", "101"], "between 0 and 100"),
        (["--dataset-name", "custom"], "needs --dataset-path"),
        (["--extra-body", "[1]"], "JSON object"),
        (["--num-prompts", "-1"], "at least 1"),
    ],
)
def test_a_flag_that_cannot_be_is_refused(argv, said, capsys):
    with pytest.raises(SystemExit):
        parse(["serve", *argv])
    assert said in capsys.readouterr().err


def test_a_key_of_the_environment_and_fields_of_the_command_line_are_sent():
    settings = parse(
        ["serve", "--header", "x-a=1", "--extra-body", '{"top_p": 0.5, "n": 2}', "--temperature", "0.7", "--goodput", "ttft:200"], "secret"
    )
    assert settings.headers == {"authorization": "Bearer secret", "x-a": "1"}
    assert settings.body == {"temperature": 0.7, "ignore_eos": True, "top_p": 0.5, "n": 2}
    assert settings.wanted.goodput == {"ttft": 200.0}
    assert Path(settings.given.result_dir) == Path()
