"""A real replica, two processes, under thousands of hostile requests: no 5xx, the same engine, and the stream beside them whole."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from pagoda_daemon.simulated.device.worker import expected_tokens
from pagoda_daemon.text.tokens import ModelText
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from support.clients import hostile_calls
from support.clients.hostile_requests import KEY_CANARY, PROMPT_CANARY, Hostile, hostile_requests
from support.engine.constrained import BOMBS, SLOW_BOMBS
from support.engine.toy_model import VOCAB
from support.judges.refusals import LEAK, error_of, message_error_of
from support.servers.local_replica import texts
from support.servers.real_replica import real_config
from support.servers.replica import NAME, PATIENCE_S, Replica, replica_config, start_replica

SEED, OTHERS, AT_ONCE, EXAMPLES = 20, 1000, 24, 120
SHARE = 3  # of an operation's examples, every day
LEAST = 3000
AT_A_REAL_ONE = 400
# Tokens of the stream beside a grammar that takes its 2 s of CPU and all: 3,100 on a busy machine of two cores.
MOST_MEANWHILE = 20_000
# A step of the stream beside 800 requests at 2 ms took 3.2 s of its engine's CPU, at 10 ms 1.5 s. Beside grammars it is heard sooner.
BESIDE_MS, BESIDE_GRAMMARS_MS = 10.0, 4.0
IDLE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
INNOCENT = {"model": NAME, "prompt": [250, 250], "max_tokens": 300, "stream": True, "ignore_eos": True}
OURS = re.compile(r"0x[0-9a-f]{8,}|Traceback|site-packages|pagoda_daemon|msgspec", re.IGNORECASE)
ADDRESS = re.compile(r"0x[0-9a-f]{8,}", re.IGNORECASE)


def leaks(hostile: Hostile, answer: httpx.Response) -> str | None:
    """What a refusal says that it should not."""
    if answer.status_code < 400 or hostile.method == "HEAD":
        return None
    said = answer.text
    if found := OURS.search(said) if hostile.echoes else LEAK.search(said.replace("../../etc/passwd", "").replace("http://x/", "")):
        return found[0]
    return next((word for word in (KEY_CANARY, *(() if hostile.echoes else (PROMPT_CANARY,))) if word in said), None)


async def send(client: httpx.AsyncClient, hostile: Hostile) -> httpx.Response | None:
    headers = {name: text.encode("latin-1") for name, text in hostile.headers.items()}
    try:
        address = f"{str(client.base_url).rstrip('/')}{hostile.path}"  # whole: httpx takes no path that begins with two slashes
        return await client.request(hostile.method, address, content=hostile.body, headers=headers)  # type: ignore[arg-type]
    except httpx.RemoteProtocolError:  # refused by closing
        return None


def verdict(hostile: Hostile, answer: httpx.Response) -> str | None:
    """What is wrong with an answer, or nothing."""
    if answer.status_code >= 500:
        return f"{answer.status_code} {answer.text}"
    if answer.status_code >= 400 and hostile.method != "HEAD":
        (message_error_of if hostile.path.startswith("/v1/messages") else error_of)(answer.json())
    return leaks(hostile, answer)


async def attack(
    base_url: str, others: int, most: int | None = None, *, whole: bool = False
) -> tuple[Counter[int], Counter[str], list[Any]]:
    """Statuses, how often each endpoint was asked, and whatever a server in good health does not answer. `most`: of all, so many."""
    statuses, routes, wrong, certificates = Counter[int](), Counter[str](), [], httpx.create_ssl_context()
    todo = islice(hostile_requests(others, SEED, whole=whole), most)

    async def one_after_another() -> None:
        # A pool of connections looks at each of them at every request, which was a third of this client's CPU.
        async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, trust_env=False, verify=certificates) as client:
            for hostile in todo:
                answer = await send(client, hostile)
                statuses[answer.status_code if answer is not None else 0] += 1
                routes[hostile.route] += 1
                if answer is not None and (why := verdict(hostile, answer)):
                    wrong.append((why, hostile, answer.text))

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return statuses, routes, wrong


def endpoints(base_url: str) -> set[str]:
    """By the replica's own description, without those that are not built."""
    paths = httpx.get(f"{base_url}/openapi.json", timeout=PATIENCE_S, trust_env=False).json()["paths"]
    return {path for path, methods in paths.items() if all("200" in one["responses"] for one in methods.values())}


async def innocent(base_url: str, over: asyncio.Event) -> list[bytes]:
    """The same stream again and again until `over`."""
    said = []
    async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, trust_env=False) as client:
        while not over.is_set() or not said:
            answer = await client.post("/v1/completions", json=INNOCENT)
            assert answer.status_code == 200, answer.text
            said.append(answer.content)
    return said


async def beside(base_url: str, work: Any) -> tuple[Any, list[bytes]]:
    over = asyncio.Event()
    streams = asyncio.ensure_future(innocent(base_url, over))
    try:
        result = await work
    finally:
        over.set()
    return result, await streams


def metric(base_url: str, name: str) -> float:
    text = httpx.get(f"{base_url}/metrics", timeout=PATIENCE_S, trust_env=False).text
    return float(re.search(rf"^{name}{{[^}}]*}} ([0-9.e-]+)$", text, re.MULTILINE)[1])  # type: ignore[index]


def judge(replica: Replica, engine: int, streams: list[bytes], folder: Path) -> None:
    """The engine is the one that it was, idle and empty; every stream was that of a replica alone."""
    assert replica.engine_pid() == engine
    assert replica.process.poll() is None
    text = ModelText(folder / "toy-model")
    prompt = (250, 250)
    assert {texts(stream) for stream in streams} == {text.decode(expected_tokens(prompt, 300, VOCAB))}
    # The engine hears a step later of what the front has ended.
    deadline = time.monotonic() + PATIENCE_S
    while left := {name: count for name in IDLE if (count := metric(f"http://{replica.http}", name))}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def no_canary(said: str) -> None:
    for word in (PROMPT_CANARY, KEY_CANARY, "Traceback", "Exception in ASGI"):
        assert word not in said, said[max(0, said.find(word) - 500) : said.find(word) + 500]
    assert ADDRESS.search(said) is None


@pytest.mark.deep
def test_thousands_of_hostile_requests_leave_a_replica_as_it_was(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    """With --all every endpoint gets every wrong value of each of its fields."""
    whole = pytestconfig.getoption("--all")
    others = OTHERS if whole else OTHERS // 2
    with start_replica(replica_config(tmp_path, step_ms=BESIDE_MS)) as replica:
        engine, logged = replica.engine_pid(), len(replica.lines)
        base_url = f"http://{replica.http}"
        ends, faults = asyncio.run(hostile_calls.attack(replica.grpc, others, SEED))
        assert faults == []
        assert min(ends["OK"], ends["INVALID_ARGUMENT"]) > 100
        (statuses, routes, wrong), streams = asyncio.run(beside(base_url, attack(base_url, others, whole=whole)))
        assert wrong == []
        assert routes.keys() >= endpoints(base_url)
        assert sum(statuses.values()) >= LEAST
        assert statuses[400] > LEAST / 4
        assert statuses[200] > LEAST / 40
        judge(replica, engine, streams, tmp_path)
        no_canary(json.dumps(replica.lines[logged:]) + capfd.readouterr().err)


@pytest.mark.deep
def test_a_real_model_under_hostile_requests_fails_at_nothing_that_a_client_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    """The simulated device computes no logits: what only a sampler refuses shows here. With --all every request is sent."""
    most, others = (None, OTHERS) if pytestconfig.getoption("--all") else (AT_A_REAL_ONE, 50)
    with start_replica(real_config(tmp_path)) as replica:
        base_url, engine, logged = f"http://{replica.http}", replica.engine_pid(), len(replica.lines)
        statuses, routes, wrong = asyncio.run(attack(base_url, OTHERS, most, whole=most is None))
        assert wrong == []
        assert sum(statuses.values()) >= (most or LEAST)
        assert routes.keys() >= endpoints(base_url)
        assert min(statuses[200], statuses[400]) > AT_A_REAL_ONE / 40
        ends, faults = asyncio.run(hostile_calls.attack(replica.grpc, others, SEED))
        assert faults == []
        assert ends["OK"] > 100
        for fields, named in CONTRADICTIONS:
            contradicts(base_url, fields, named)
        assert replica.engine_pid() == engine
        no_canary(json.dumps(replica.lines[logged:]) + capfd.readouterr().err)


# No token is left at the first place, or at the fourth; as the request says it, and as it is named.
CONTRADICTIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({"allowed_token_ids": [300], "structured_outputs": {"regex": "[0-9]{3}"}}, {"allowed_token_ids", "structured_outputs.regex"}),
    ({"allowed_token_ids": [49, 50], "guided_regex": "[12]{3}[a-c]"}, {"allowed_token_ids", "guided_regex"}),
    ({"allowed_token_ids": [300], "response_format": {"type": "json_object"}, "n": 3}, {"allowed_token_ids", "response_format"}),
    ({"allowed_token_ids": [300], "stop_token_ids": [300], "min_tokens": 3}, {"allowed_token_ids", "min_tokens"}),
    ({"allowed_token_ids": [49], "bad_words": ["1"]}, {"allowed_token_ids", "bad_words"}),
]


def contradicts(base_url: str, fields: dict[str, Any], named: set[str]) -> None:
    """400 with both names; told in an event where the stream has begun."""
    body = {"model": NAME, "prompt": "hi", "max_tokens": 12} | fields
    whole = httpx.post(f"{base_url}/v1/completions", json=body, timeout=PATIENCE_S, trust_env=False)
    assert whole.status_code == 400, whole.text
    error = error_of(whole.json())
    assert error["param"] in named
    assert all(name in error["message"] for name in named), error
    streamed = httpx.post(f"{base_url}/v1/completions", json=body | {"stream": True}, timeout=PATIENCE_S, trust_env=False)
    events = [json.loads(part[6:]) for part in streamed.text.split("\n\n") if part.startswith("data: {")]
    assert error_of(events[-1] if streamed.status_code == 200 else streamed.json()) == error


def bomb_body(kind: str, text: str) -> dict[str, Any]:
    said = {"model": NAME, "messages": [{"role": "user", "content": PROMPT_CANARY}], "max_tokens": 4}
    if kind == "json_schema":
        return said | {"response_format": {"type": kind, "json_schema": {"name": "x", "schema": json.loads(text)}}}
    return said | {"structured_outputs": {kind: text}}


async def throw_bombs(base_url: str) -> list[tuple[int, Any, float]]:
    """Of each, one after another: status, answer, and the tokens that the stream beside it got meanwhile, which goes on."""
    answers = []
    async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S, trust_env=False) as client:
        for bomb in (*SLOW_BOMBS, *BOMBS):
            before = metric(base_url, "vllm:generation_tokens_total")
            answer = await client.post("/v1/chat/completions", json=bomb_body(*bomb))
            while not (meanwhile := metric(base_url, "vllm:generation_tokens_total") - before):  # refused sooner than a step ends
                await asyncio.sleep(0.01)
            answers.append((answer.status_code, answer.json(), meanwhile))
    return answers


@pytest.mark.deep
def test_exploding_grammars_are_refused_beside_a_stream_that_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with start_replica(replica_config(tmp_path, step_ms=BESIDE_GRAMMARS_MS)) as replica:
        engine, logged = replica.engine_pid(), len(replica.lines)
        answers, streams = asyncio.run(beside(f"http://{replica.http}", throw_bombs(f"http://{replica.http}")))
        for status, answer, meanwhile in answers:
            assert status in (200, 400), answer
            assert status == 200 or error_of(answer)["code"] == "invalid_grammar", answer
            assert meanwhile < MOST_MEANWHILE
        assert sum(status == 400 for status, *_ in answers) >= len(answers) // 2
        assert answers[0][0] == 400
        judge(replica, engine, streams, tmp_path)
        no_canary(json.dumps(replica.lines[logged:]) + capfd.readouterr().err)


@pytest.mark.deep
def test_what_our_own_description_allows_is_answered_as_it_describes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    """With --all there are three times as many examples of each operation."""
    most = EXAMPLES if pytestconfig.getoption("--all") else EXAMPLES // SHARE
    with start_replica(replica_config(tmp_path, step_ms=0.2)) as replica:
        base_url, engine, logged = f"http://{replica.http}", replica.engine_pid(), len(replica.lines)
        description = httpx.get(f"{base_url}/openapi.json", timeout=PATIENCE_S, trust_env=False).json()
        seen: Counter[str] = Counter()
        served = endpoints(base_url)
        description["paths"] = {path: methods for path, methods in description["paths"].items() if path in served}
        for found in schemathesis.openapi.from_dict(description).get_all_operations():
            operation = found.ok()
            examples = most if operation.method.upper() == "POST" else EXAMPLES // 12

            @given(operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
            @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
            def conforms(case: Any) -> None:
                case.call_and_validate(base_url=base_url, checks=CHECKS, timeout=PATIENCE_S)
                seen[case.operation.label] += 1

            conforms()
        assert len(seen) >= 10
        assert sum(seen.values()) >= 400 / EXAMPLES * most
        _, streams = asyncio.run(beside(base_url, asyncio.sleep(0)))
        judge(replica, engine, streams, tmp_path)
        no_canary(json.dumps(replica.lines[logged:]) + capfd.readouterr().err)


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
