"""Real daemons (simulated workers) behind a real gateway: planned ends lose nothing, crashes lose only what had begun."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import openai
import pytest
from support.clients.streams import Load, Stream, alone, open_loop
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.replica import NAME, Replica, replica_config, start_daemon

pytestmark = pytest.mark.deep  # real processes, seconds each

QUESTIONS = [f"question number {number}" for number in range(3)]
# Answers of 5.6 s: some are under way at the event also where this process stops for five seconds before it.
LOAD = Load(QUESTIONS, per_second=8.0, before=12, after=16, tokens=350)


@pytest.fixture(scope="module")
def pool() -> Iterator[list[Replica]]:
    """All replicas of the module; the dead ones among them too."""
    replicas: list[Replica] = []
    yield replicas
    for replica in replicas:
        replica.close()


@pytest.fixture
def pair(pool: list[Replica], tmp_path: Path) -> list[Replica]:
    """Two that live: what an earlier test ended is replaced, the rest is not started again."""
    return two_living(pool, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(pool: list[Replica], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stream]:
    """Each question by itself, straight to a replica."""
    replica = two_living(pool, tmp_path_factory.mktemp("undisturbed"))[0]
    return asyncio.run(alone(f"http://{replica.http}/v1", NAME, QUESTIONS, LOAD.tokens))


def two_living(pool: list[Replica], folder: Path) -> list[Replica]:
    living = [replica for replica in pool if replica.process.poll() is None]
    config = {"step_ms": 16.0, "engine": {"max_model_len": 1024}}
    fresh = [start_daemon(replica_config(folder, **config)) for _ in range(2 - len(living))]
    pool.extend(fresh)
    for replica in fresh:
        replica.wait_listening()
        replica.wait_ready()
    return living + fresh


@contextmanager
def in_front_of(tmp_path: Path, *replicas: Replica) -> Iterator[GatewayProcess]:
    file = tmp_path / "fleet.json"
    write_fleet(file, [service(*replicas)])
    with start_gateway("--fleet", str(file)) as gateway:
        yield gateway


def service(*replicas: Replica) -> dict:
    return {"name": "ns/toy", "served_names": [NAME], "endpoints": [{"http": r.http, "grpc": r.grpc} for r in replicas]}


class Moment:
    """An event in the middle of a load: when it began, and when it was over."""

    def __init__(self, happen) -> None:
        self._happen = happen
        self.at = self.over = 0.0

    async def __call__(self) -> None:
        self.at = time.monotonic()
        await asyncio.to_thread(self._happen)
        self.over = time.monotonic()


def judge_no_loss(streams: list[Stream], undisturbed: dict[str, Stream], moment: Moment, address: str) -> None:
    """Nobody failed, every stream is the undisturbed one token by token, and the event hit streams under way on that replica."""
    assert [stream.error for stream in streams if stream.error] == []
    for stream in streams:
        assert (stream.deltas, stream.finish_reason) == (undisturbed[stream.question].deltas, undisturbed[stream.question].finish_reason)
    hit = [stream for stream in streams if stream.route and stream.route.endpoint == address and stream.in_flight_at(moment.at)]
    assert hit, "no stream was under way on the replica at the event: the test proved nothing"


async def test_a_replica_that_drains_under_load_loses_nothing(pair, undisturbed, tmp_path):
    leaving, staying = pair
    with in_front_of(tmp_path, leaving, staying) as gateway:

        def drain() -> None:
            leaving.terminate()
            assert leaving.wait() == 0

        moment = Moment(drain)
        streams = await open_loop(f"{gateway.url}/v1", NAME, LOAD, moment)
    judge_no_loss(streams, undisturbed, moment, leaving.http)
    later = [stream for stream in streams if stream.started > moment.over]
    assert {stream.route.endpoint for stream in later} == {staying.http}


async def test_the_only_replica_drains_and_what_comes_meanwhile_is_held_for_its_successor(pair, undisturbed, tmp_path):
    leaving, successor = pair
    with in_front_of(tmp_path, leaving) as gateway:

        def replace() -> None:
            leaving.terminate()
            assert leaving.wait() == 0
            write_fleet(tmp_path / "fleet.json", [service(successor)])

        moment = Moment(replace)
        streams = await open_loop(f"{gateway.url}/v1", NAME, LOAD, moment)
    judge_no_loss(streams, undisturbed, moment, leaving.http)
    assert any(stream.route.held_ms > 0 and stream.route.endpoint == successor.http for stream in streams)


async def test_a_killed_replica_costs_only_streams_that_had_begun_one_clean_error_each(pair, undisturbed, tmp_path):
    victim, survivor = pair
    with in_front_of(tmp_path, victim, survivor) as gateway:

        def kill() -> None:
            engine = victim.engine_pid()
            victim.process.kill()
            with suppress(ProcessLookupError):  # it ends with its front, and on a busy machine may be gone already
                os.kill(engine, signal.SIGKILL)
            victim.wait()

        moment = Moment(kill)
        streams = await open_loop(f"{gateway.url}/v1", NAME, LOAD, moment)
    broken = [stream for stream in streams if stream.error]
    assert broken, "no stream was under way at the kill: the test proved nothing"
    for stream in broken:
        assert "upstream_died" in stream.error
        assert stream.done
        assert stream.deltas, "it had not begun, so it should have been sent elsewhere"
        assert stream.deltas == undisturbed[stream.question].deltas[: len(stream.deltas)]
        assert stream.route.endpoint == victim.http
        assert stream.started < moment.over
    for stream in streams:
        assert stream in broken or stream.deltas == undisturbed[stream.question].deltas


async def test_load_is_shared_by_pushed_state(pair, tmp_path):
    """A replica that the machine stops for two seconds gets less meanwhile: one load of some, each of which a fault shares wrongly."""

    async def nothing() -> None:
        return None

    with in_front_of(tmp_path, *pair) as gateway:
        for _ in range(5):
            streams = await open_loop(f"{gateway.url}/v1", NAME, LOAD, nothing)
            shares = [sum(stream.route.endpoint == replica.http for stream in streams) for replica in pair]
            assert sum(shares) == len(streams)
            if min(shares) >= len(streams) / 3:
                break
    assert min(shares) >= len(streams) / 3


async def test_the_openai_client_streams_lists_and_raises(pair, tmp_path):
    with in_front_of(tmp_path, pair[0]) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            assert [card.id async for card in client.models.list()] == [NAME]
            messages = [{"role": "user", "content": "hello"}]
            whole = await client.chat.completions.create(model=NAME, messages=messages, max_tokens=8)
            stream = await client.chat.completions.create(model=NAME, messages=messages, max_tokens=8, stream=True)
            deltas = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            assert "".join(deltas) == whole.choices[0].message.content != ""
            with pytest.raises(openai.NotFoundError) as caught:
                await client.completions.create(model="no-such", prompt="x")
            assert caught.value.code == "model_not_found"
            assert caught.value.request_id
