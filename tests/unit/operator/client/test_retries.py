"""Reads that failed for a reason that passes are asked again within their call; nothing else is, and no storm grows by it."""

import asyncio
import random
import socket
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client.configuration import Configuration
from pagoda_operator.api.errors import ClusterError, Conflict, Denied, Refused, Unavailable
from pagoda_operator.api.state import CONFIG_MAPS, PODS
from pagoda_operator.client import cluster as module
from pagoda_operator.client.cluster import Hooks, KubeCluster
from pagoda_operator.client.requests import TALLY, RetryBudget, Tally
from pagoda_operator.run.settings import Settings
from pagoda_operator.serve import process as serve
from structlog.testing import capture_logs
from support.servers.failing_server import BREAKS, GOOD, FailingServer, kubeconfig

AT_ONCE = SimpleNamespace(uniform=lambda *_: 0.0)
PASSING = (*BREAKS, "500", "502", "503", "504", "503:0", "429:0")
DEFINITE = {
    "400": Refused,
    "401": Denied,
    "403": Denied,
    "409": Conflict,
    "410": Unavailable,
    "422": Refused,
    "429": Unavailable,
    "429:3": Unavailable,
    "429:Wed, 21 Oct 2026 07:28:00 GMT": Unavailable,
    "501": Unavailable,
    "503:30": Unavailable,
    "505": Unavailable,
}


class Asking:
    """A client that asks again at once, and how often it did."""

    def __init__(self, server, **more):
        self.server, self.more, self.again = server, more, 0

    async def __aenter__(self):
        await self.server.__aenter__()
        given = {"timeout": 60.0, "retries": RetryBudget(lambda: 0.0, AT_ONCE)} | self.more
        self.cluster = KubeCluster(Configuration(host=self.server.url), Hooks(again=self.count), **given)
        return self

    async def __aexit__(self, *_):
        await self.cluster.close()
        await self.server.__aexit__()

    def count(self):
        self.again += 1

    @property
    def seen(self):
        return len(self.server.seen)


READS = {
    "get": (lambda cluster: cluster.get(CONFIG_MAPS, "ns", "a"), GOOD),
    "list": (lambda cluster: cluster.list(PODS, "ns", "a"), []),
    "token_keys": (lambda cluster: cluster.token_keys(), GOOD),
    "serves": (lambda cluster: cluster.serves(PODS), False),
}


@pytest.mark.parametrize("word", PASSING)
@pytest.mark.parametrize("read", READS)
async def test_a_read_with_a_transient_error_is_repeated(read, word):
    ask, found = READS[read]
    async with Asking(FailingServer([word])) as asking:
        TALLY.set(tally := Tally())
        assert await ask(asking.cluster) == found
        assert (asking.seen, asking.again, tally.requests) == (2, 1, 2)


@pytest.mark.parametrize("word", PASSING)
async def test_a_read_fails_after_three_attempts(word):
    """Six times, were the library below left to itself."""
    async with Asking(FailingServer([word] * 9)) as asking:
        with pytest.raises(Unavailable):
            await asking.cluster.get(CONFIG_MAPS, "ns", "a")
        assert (asking.seen, asking.again) == (3, 2)


@pytest.mark.parametrize("word", DEFINITE)
async def test_a_lasting_error_is_not_repeated(word):
    async with Asking(FailingServer([word])) as asking:
        with pytest.raises(DEFINITE[word]):
            await asking.cluster.list(PODS, "ns", "a")
        assert (asking.seen, asking.again) == (1, 0)


async def test_not_found_is_an_answer():
    async with Asking(FailingServer(["404"])) as asking:
        assert await asking.cluster.get(PODS, "ns", "a") is None
        assert asking.seen == 1


async def test_a_short_outage_is_bridged():
    """The port refuses until the client says that it asks again."""
    back = []
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        async with FailingServer() as server:
            hooks = Hooks(again=lambda: back.append(asyncio.ensure_future(asyncio.start_server(server._serve, sock=port))))
            url = f"http://127.0.0.1:{port.getsockname()[1]}"
            cluster = KubeCluster(Configuration(host=url), hooks, 60.0, RetryBudget(time.monotonic, random.Random(1)))
            assert await cluster.list(PODS, "ns", "a") == []
            assert (len(back), len(server.seen)) == (1, 1)
            await cluster.close()
            (await back[0]).close()


META = GOOD["metadata"]
MANIFEST = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": META}
WRITES = {
    "create": lambda cluster: cluster.create(CONFIG_MAPS, MANIFEST, "m"),
    "replace": lambda cluster: cluster.replace(CONFIG_MAPS, MANIFEST, "m"),
    "apply": lambda cluster: cluster.apply(CONFIG_MAPS, MANIFEST, "m"),
    "apply_status": lambda cluster: cluster.apply_status(CONFIG_MAPS, MANIFEST, "m"),
    "annotate": lambda cluster: cluster.annotate(CONFIG_MAPS, META, {"a": "b"}, "m"),
    "delete": lambda cluster: cluster.delete(CONFIG_MAPS, META),
}


@pytest.mark.parametrize("word", PASSING)
@pytest.mark.parametrize("verb", WRITES)
async def test_no_write_is_sent_twice(verb, word):
    """Not by the library either, which would send a PUT or DELETE again and not ask whether this process still leads."""
    wrote = []
    async with Asking(FailingServer([word])) as asking:
        asking.cluster._hooks = asking.cluster._hooks._replace(wrote=lambda *reported: wrote.append(reported))
        with pytest.raises(Unavailable):
            await WRITES[verb](asking.cluster)
        assert (asking.seen, asking.again, wrote) == (1, 0, [])
        # Of what was answered with a good status, however badly, nothing is on its way any more.
        assert asking.cluster.answered == (word in ("shorter", "a page", "a list", "429:0"))


@pytest.mark.deep
async def test_a_timeout_is_not_repeated():
    async with Asking(FailingServer(["silence"]), timeout=3.0) as asking:  # time to connect on a busy machine
        with pytest.raises(Unavailable):
            await asking.cluster.get(PODS, "ns", "a")
        assert asking.seen == 1


async def test_all_attempts_share_one_timeout(monkeypatch):
    """Each takes 12 s of the 30 that a call has."""
    now, given = 0.0, []

    async def call_api(*_, _request_timeout):
        nonlocal now
        given.append(_request_timeout)
        now += 12.0
        raise ConnectionResetError

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    async with Asking(FailingServer(), timeout=30.0) as asking:
        asking.cluster._api.call_api = call_api
        with pytest.raises(Unavailable):
            await asking.cluster.get(PODS, "ns", "a")
        assert given == [30.0, 18.0, 6.0]
        given.clear()
        asking.cluster._timeout = 24.5
        with pytest.raises(Unavailable):
            await asking.cluster.get(PODS, "ns", "a")
        assert given == [24.5, 12.5]


async def test_in_an_outage_a_fifth_more_requests_are_sent():
    async with Asking(FailingServer(["503"] * 10_000)) as asking:
        results = await asyncio.gather(*(asking.cluster.get(PODS, "ns", "a") for _ in range(300)), return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results)
        assert 300 + 50 <= asking.seen <= 300 + 50 + 0.2 * 300


@pytest.mark.deep
async def test_with_a_tenth_of_requests_and_answers_lost_reads_succeed():
    """Each alone ended well four times in five, a dozen of them once in 14 times. A second between two runs."""
    now, rng = 0.0, random.Random(1)
    async with Asking(
        FailingServer("reset" if rng.random() < 0.2 else "200" for _ in range(10_000)), retries=RetryBudget(lambda: now, AT_ONCE)
    ) as asking:

        async def run():
            for _ in range(12):
                await asking.cluster.get(PODS, "ns", "a")

        failed = 0
        for _ in range(100):
            now += 1.0
            try:
                await run()
            except Unavailable:
                failed += 1
        assert failed <= 15


async def test_repeated_reads_are_in_the_debug_log():
    async with Asking(FailingServer(["500", "reset"])) as asking:
        with capture_logs() as lines:
            await asking.cluster.get(PODS, "ns", "a")
    assert [(line["event"], line["log_level"], line["attempts"]) for line in lines] == [
        ("read_again", "debug", 1),
        ("read_again", "debug", 2),
    ]
    assert lines[0]["why"] == "500: planted"


async def test_requests_of_the_lease_are_not_repeated(tmp_path):
    """Short tries, each of them the Lease's own to count and to repeat."""
    async with FailingServer(["500", "503:0"]) as server:
        lease_client = await serve._lease_client(Settings(kubeconfig=kubeconfig(tmp_path, server.url)))
        for asked in (1, 2):
            with pytest.raises(ClusterError):
                await lease_client.get(CONFIG_MAPS, "ns", "a")
            assert len(server.seen) == asked
        assert (lease_client._timeout, lease_client._retries) == (5.0, None)
        assert "middlewares" not in lease_client._api.configuration.client_session_kwargs
        await lease_client.close()


MOVES = st.lists(
    st.one_of(st.just("asked"), st.floats(0.0, 30.0), st.tuples(st.sampled_from([None, 0.0, 1.0, 2.0, 2.1]), st.integers(1, 4)))
)


@given(MOVES)
def test_the_budget_bounds_all_repetitions(moves):
    now, asked = 0.0, 0
    budget = RetryBudget(lambda: now, random.Random(1))
    again = sum(budget.pause(0.0, 1, 30.0) is not None for _ in range(60))
    for move in moves:
        if move == "asked":
            asked += 1
            budget.asked()
        elif isinstance(move, float):
            now += move
        else:
            soon, attempts = move
            pause = budget.pause(soon, attempts, 30.0)
            again += pause is not None
            if pause is not None:
                assert soon <= pause <= soon + 0.6
                assert attempts <= 2
    assert again <= 50 + 0.2 * asked + now + 1e-6


def test_the_budget_refills_up_to_its_limit():
    now = 0.0
    budget = RetryBudget(lambda: now, random.Random(1))

    def paid():
        found = 0
        while budget.pause(0.0, 1, 30.0) is not None:
            found += 1
        return found

    assert (paid(), paid()) == (50, 0)
    for _ in range(10):
        budget.asked()
    assert paid() == 2
    now = 5.0
    assert paid() == 5
    now = 500.0
    assert paid() == 50


def test_no_attempt_begins_with_too_little_time_left():
    budget = RetryBudget(lambda: 0.0, AT_ONCE)
    assert [budget.pause(0.5, 1, left) for left in (1.6, 1.4, -3.0)] == [0.5, None, None]
