"""What a watcher hears of a replica: how it is, how fast, what a step costs, and which texts' beginnings it has computed."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest
from pagoda_contracts.launch import AdapterModule, AdaptersConfig
from pagoda_contracts.names import GRPC_WATCH_STATE, HEADER_PREFIX_HASHES, ROLE_GATEWAY, STATE_FLOOR_MS, STATE_HEARTBEAT_MS
from pagoda_contracts.pb.daemon_pb2 import AdapterPhase, AdapterState, Phase, State, WatchStateRequest
from pagoda_contracts.prefix import TEXT_CHUNK_BYTES, Scope, text_hashes, to_header
from pagoda_daemon.api.grpc import watch
from pagoda_daemon.api.grpc.watch import Identity, Pace, frame
from pagoda_daemon.core.messages import Ready, Stats
from pagoda_daemon.health.drain import Drain, Until
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.simulated.device.worker import read_digest
from support.engine.adapter_files import write_adapter
from support.kube.issuer import Issuer
from support.servers.local_front import NAME, PATIENCE_S, local_config, local_front

SCOPE = Scope("salt", NAME)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture
async def front(tmp_path, issuer):
    engine = {"max_model_len": 2048, "max_concurrency": 2, "kv_bytes": 8 * 16 * 150}
    async with local_front(local_config(tmp_path, auth=issuer.config(), engine=engine)) as made:
        yield made


@pytest.fixture
def bearer(issuer):
    return f"Bearer {issuer.token(ROLE_GATEWAY)}"


class Watcher:
    """One stream, folded as a gateway folds it."""

    def __init__(self, stream):
        self.stream = stream
        self.known = set()
        self.frames = []

    async def read(self):
        state = await self.stream.read()
        self.frames.append(state)
        if state.prefix_reset:
            self.known = set()
        self.known = (self.known | set(state.prefixes_resident)) - set(state.prefixes_evicted)
        return state

    async def until(self, holds):
        async with asyncio.timeout(PATIENCE_S):
            while not holds(await self.read()):
                pass


@asynccontextmanager
async def watching(front, bearer, **wish):
    async with front.channel() as channel:
        call = channel.unary_stream(
            GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
        )
        stream = call(WatchStateRequest(watcher="test", **wish), metadata=(("authorization", bearer),))
        yield Watcher(stream)
        stream.cancel()


def text_of(number):
    return f"{number:03} " * (3 * TEXT_CHUNK_BYTES // 4 + 20)


async def ask(front, bearer, text, hashes=None):
    headers = {"authorization": bearer, **({HEADER_PREFIX_HASHES: to_header(hashes)} if hashes else {})}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        body = {"model": NAME, "prompt": text, "max_tokens": 2, "ignore_eos": True}
        answer = await client.post(f"http://{front.http}/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    return answer.json()


async def test_a_gateway_hears_which_texts_became_resident_and_which_were_evicted(front, bearer):
    text = text_of(0)
    hashes = text_hashes(SCOPE, text)
    assert len(hashes) == 3
    async with watching(front, bearer) as watcher:
        first = await watcher.read()
        assert (first.prefix_reset, list(first.prefixes_resident)) == (True, [])
        await ask(front, bearer, text, hashes)
        await watcher.until(lambda _: watcher.known >= set(hashes))
        assert not any(state.prefix_reset for state in watcher.frames[1:])
        async with watching(front, bearer) as late:
            state = await late.read()
            assert state.prefix_reset
            assert set(state.prefixes_resident) == set(hashes)
        for number in range(1, 9):
            await ask(front, bearer, text_of(number))
        await watcher.until(lambda _: not watcher.known & set(hashes))
        assert watcher.frames[-1].blocks_cached > 0


async def test_a_watcher_without_interest_in_texts_gets_fewer_frames_and_none_of_their_names(front, bearer):
    text = text_of(0)
    async with watching(front, bearer) as all_of_it, watching(front, bearer, interval_ms=10**9, no_prefixes=True) as watcher:
        await ask(front, bearer, text, text_hashes(SCOPE, text))
        await all_of_it.until(lambda _: all_of_it.known >= set(text_hashes(SCOPE, text)))
        await watcher.until(lambda state: state.requests_ended == 1)
        assert not any(state.prefix_reset or state.prefixes_resident for state in watcher.frames)
    times = [state.sent_at_ms for state in watcher.frames]
    assert min(later - earlier for earlier, later in pairwise(times)) >= STATE_HEARTBEAT_MS - 5


async def test_texts_named_by_somebody_else_are_not_heard_of(tmp_path):
    async with local_front(local_config(tmp_path, engine={"max_model_len": 2048})) as front:
        await ask(front, "", text_of(0), text_hashes(SCOPE, text_of(0)))
        assert not front.front.replica.prefixes.resident


async def test_frames_report_the_pace_and_what_a_step_costs(front, bearer):
    async with watching(front, bearer) as watcher:
        for number in range(3):
            await ask(front, bearer, text_of(number))
        await watcher.until(lambda state: state.step_base_us + state.step_token_us > 0 and state.ttft_p95_ms > 0 < state.tokens_per_second)
        last = watcher.frames[-1]
        assert last.version
        assert last.blocks_used + last.blocks_free == last.blocks_total == 150
        assert 0 < last.blocks_cached <= last.blocks_free


async def test_a_change_is_pushed_and_waits_for_no_heartbeat(front, bearer, monkeypatch):
    monkeypatch.setattr(watch, "STATE_HEARTBEAT_MS", 10 * PATIENCE_S * 1000)
    async with watching(front, bearer) as watcher:
        await watcher.read()
        await ask(front, bearer, text_of(0))
        await watcher.until(lambda state: state.blocks_cached > 0)


async def test_more_news_than_one_frame_holds_comes_in_the_next_ones_at_the_floors_pace(front, bearer, monkeypatch):
    monkeypatch.setattr("pagoda_daemon.health.prefixes.PER_FRAME", 4)
    names = [bytes([number]) * 16 for number in range(18)]
    front.front.replica.prefixes.note(names, [])
    async with watching(front, bearer) as watcher:
        await watcher.until(lambda _: watcher.known == set(names))
    assert [len(state.prefixes_resident) for state in watcher.frames] == [4, 4, 4, 4, 2]
    assert watcher.frames[-1].sent_at_ms - watcher.frames[0].sent_at_ms >= 4 * (STATE_FLOOR_MS - 1)


async def test_watchers_are_bounded_and_leave_nothing_behind(front, bearer, monkeypatch):
    monkeypatch.setattr(watch, "MAX_WATCHERS", 1)
    async with watching(front, bearer) as first:
        await first.read()
        async with watching(front, bearer) as second:
            with pytest.raises(Exception, match="watch already"):
                await second.read()
    async with asyncio.timeout(PATIENCE_S):
        while front.front.replica.prefixes._readers:
            await asyncio.sleep(0)


async def test_a_gateway_hears_which_names_are_adapters_as_they_come_and_go(tmp_path, issuer, bearer):
    root = write_adapter(tmp_path / "adapters" / "one", b"one").parent
    write_adapter(root / "two", b"two")
    adapters = AdaptersConfig(modules=(AdapterModule(name="first", path=str(root / "one")),), directory=str(root))
    loaded = {
        name: AdapterState(name=name, digest=read_digest(root / folder, None).digest, phase=AdapterPhase.ADAPTER_PHASE_LOADED)
        for name, folder in (("first", "one"), ("second", "two"))
    }
    config = local_config(tmp_path, adapters=adapters)
    async with (
        local_front(config) as front,
        watching(front, bearer) as watcher,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):
        await watcher.until(lambda state: list(state.adapters) == [loaded["first"]])
        url = f"http://{front.http}/v1"
        assert (await http.post(f"{url}/load_lora_adapter", json={"lora_name": "second", "lora_path": "two"})).status_code == 200
        await watcher.until(lambda state: list(state.adapters) == [*loaded.values()])
        assert (await http.post(f"{url}/unload_lora_adapter", json={"lora_name": "first"})).status_code == 200
        await watcher.until(lambda state: list(state.adapters) == [loaded["second"]])


def test_a_gateway_sees_what_waits_for_its_grammar_or_adapter_as_waiting():
    replica = Replica(born=0.0, stats=Stats(running=1, waiting=2, compiling=3, waiting_tokens=9), waking=4)
    state = frame(replica, Identity(("m",), "r1", "v1"), 1, 10.0)
    assert (state.running, state.waiting, state.waiting_tokens) == (1, 9, 9)


def test_a_frame_is_what_the_replica_is():
    replica = Replica(born=0.0, phase=Phase.PHASE_DRAINING, limits=Ready(64, 1024, 16, 40, 2), in_flight=3, admitted=5)
    replica.stats = Stats(
        running=2, waiting=1, waiting_tokens=9, blocks_used=8, blocks_free=32, blocks_total=40, blocks_cached=5, prefill_tokens=70
    )
    replica.engine_beat, replica.step_started, replica.predicted_step_ms = 9.75, 9.9, 20
    replica.cost_us, replica.drain = (500.0, 7.0, 0.25), Drain(True, False, Until(5, 12_345), 6)
    state = frame(replica, Identity(("m",), "r1", "v1"), 4, 10.0, Pace(0.25, 80.0))
    assert (state.phase, state.in_flight, state.running, state.waiting, state.waiting_tokens) == (Phase.PHASE_DRAINING, 3, 2, 1, 9)
    assert (state.requests_admitted, state.requests_ended) == (5, 2)
    assert state.prefill_tokens == 70
    assert (state.blocks_cached, state.engine_heartbeat_age_ms, state.step_age_ms, state.predicted_step_ms) == (5, 250, 100, 20)
    # 8 blocks of 16 tokens under two rows: 64 tokens to look back at, a quarter of a microsecond each.
    assert (state.step_base_us, state.step_token_us, state.step_row_us) == (500.0, 7.0, 16.0)
    assert (state.drain_deadline_unix_ms, state.epoch, state.ttft_p95_ms, state.tokens_per_second) == (12_345, 6, 250, 80.0)
    assert (state.version, state.revision, state.sequence) == ("v1", "r1", 4)
