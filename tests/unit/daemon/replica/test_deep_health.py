"""The three levels of health seen from outside a replica of real processes: the canary's verdict in the state frame and nowhere else,
probes while the device is as busy as can be."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import grpc
import httpx
import pytest
from pagoda_contracts.launch import Fault, HealthConfig
from pagoda_contracts.metrics import DEEP_CHECKS
from pagoda_contracts.names import GRPC_WATCH_STATE, PATH_LIVE, PATH_READY, PATH_STARTUP
from pagoda_contracts.pb.daemon_pb2 import State, WatchStateRequest
from support.clients.outcomes import MixedClients
from support.servers.replica import NAME, Replica, replica_config, start_replica

pytestmark = pytest.mark.deep

BODY = {"model": NAME, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
OFTEN = HealthConfig(deep_probe_every="200ms")


def frames(replica: Replica) -> Iterator[State]:
    with grpc.insecure_channel(replica.grpc) as channel:
        watch = channel.unary_stream(
            GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
        )
        call = watch(WatchStateRequest(watcher="test"), timeout=300)
        try:
            yield from call
        finally:
            call.cancel()


def checks(replica: Replica) -> dict[str, int]:
    text = httpx.get(f"http://{replica.http}/metrics", timeout=300).text
    found = re.findall(rf'^{DEEP_CHECKS.name}_total\{{.*outcome="(\w+)".*\}} ([0-9.]+)$', text, re.MULTILINE)
    return {outcome: int(float(count)) for outcome, count in found if float(count)}


def until_checked(replica: Replica, outcome: str, times: int) -> None:
    deadline = time.monotonic() + 300
    while checks(replica).get(outcome, 0) < times:
        assert time.monotonic() < deadline, checks(replica)
        time.sleep(0.05)


async def test_a_device_that_gives_wrong_tokens_shows_in_the_state_and_in_no_probe(tmp_path):
    fault = Fault(kind="wrong", at_step=5)
    with start_replica(replica_config(tmp_path, faults=(fault,), health=OFTEN)) as replica:
        await asyncio.to_thread(until_checked, replica, "right", 2)
        assert any(not state.deep_check_failed for state in frames(replica)), "one that was late is made good by the next"
        clients = MixedClients(replica.http, {**BODY, "max_tokens": 10}, streams=1, wholes=0)
        await clients.ended()  # its steps break the device
        await asyncio.to_thread(until_checked, replica, "wrong", 1)
        failed = next(state for state in frames(replica) if state.deep_check_failed)
        assert failed.deep_check_age_ms > 0
        older = next(state for state in frames(replica) if state.deep_check_age_ms > failed.deep_check_age_ms + 300)
        assert older.deep_check_failed
        assert [replica.probe(path)[0] for path in (PATH_READY, PATH_LIVE, PATH_STARTUP)] == [200] * 3
        again = MixedClients(replica.http, {**BODY, "max_tokens": 10}, streams=1, wholes=0)
        assert [client.error for client in await again.ended()] == [None], "who takes it out of routing is not the replica"


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Two rows and blocks for one and a half contexts: what the clients below ask for waits and preempts all the time."""
    engine = {"max_concurrency": 2, "max_model_len": 512, "kv_bytes": 48 * 16 * 8, "token_budget": 16}
    health = HealthConfig(
        progress_timeout="30s", deep_probe_every="6s"
    )  # longer than a machine stands still: a canary that takes longer is late
    folder = tmp_path_factory.mktemp("full")
    with start_replica(replica_config(folder, step_ms=3, engine=engine, health=health)) as replica:
        yield replica


async def test_a_full_queue_and_a_full_pool_fail_neither_a_canary_nor_a_probe(full):
    # Gated on counts: whatever the machine does, no probe is missed or red and no canary late or wrong.
    probes: list[tuple[int, str]] = []
    during: dict[str, int] = {}
    while len(probes) < 200 or not during:  # new clients if the old ones were done before it was probed so often
        clients = MixedClients(full.http, {**BODY, "max_tokens": 300}, streams=9, wholes=2)
        while (len(probes) < 200 or not during) and not all(client.ended for client in clients.outcomes):
            probes += [await asyncio.to_thread(full.probe, path) for path in (PATH_LIVE, PATH_READY)]
            during = await asyncio.to_thread(checks, full)
            await asyncio.sleep(0.02)
        assert [client.error for client in await clients.ended()] == [None] * 11
    assert [probe for probe in probes if probe[0] != 200] == []
    assert during.keys() == {"right"}
    while "0 in flight" not in (await asyncio.to_thread(full.probe, PATH_READY))[1]:  # the front's loop may be a moment behind its clients
        await asyncio.sleep(0.02)


async def test_canaries_are_in_no_count(full):
    before = await asyncio.to_thread(lambda: httpx.get(f"http://{full.http}/metrics", timeout=300).text)
    seen = (await asyncio.to_thread(checks, full))["right"]
    await asyncio.to_thread(until_checked, full, "right", seen + 2)
    after = await asyncio.to_thread(lambda: httpx.get(f"http://{full.http}/metrics", timeout=300).text)

    def counts(text: str) -> list[str]:
        return [
            line
            for line in text.splitlines()
            if re.match(r"vllm:(num_requests|prompt_tokens|generation_tokens|kv_cache|request_succ)", line)
        ]

    assert counts(after) == counts(before) != []
