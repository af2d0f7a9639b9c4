"""Who is let in, in which phase of a replica's life, by the ASGI application alone: no process, no socket."""

from contextlib import ExitStack

import httpx
import pytest
from pagoda_contracts.names import (
    ERROR_DRAINING,
    ERROR_ENGINE_DIED,
    ERROR_NOT_READY,
    ERROR_OVERLOADED,
    HEADER_RETRY_AFTER,
    HEADER_SHOULD_RETRY,
)
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.http.app import Parts, application
from pagoda_daemon.api.routes.admission import Admission
from pagoda_daemon.api.routes.generation import Generator
from pagoda_daemon.core.errors import EngineDied
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import tiny_model_dir


class DeadEngine:
    """An engine client whose engine is gone."""

    def submit(self, _message):
        raise EngineDied("gone")


@pytest.fixture
def replica():
    return Replica(born=0.0, limits=Ready(64, 1024, 16, 40, 2))


@pytest.fixture
def admission(replica):
    return Admission(replica)


@pytest.fixture
async def client(replica, admission, tmp_path):
    generator = Generator(DeadEngine(), ModelText(tiny_model_dir(tmp_path)), Counts())
    parts = Parts(replica, admission, generator, Exposition("m", replica, generator.counts), ("m",), "0")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application(parts)), base_url="http://replica") as made:
        yield made


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (Phase.PHASE_STARTING, ERROR_NOT_READY),
        (Phase.PHASE_LOADING, ERROR_NOT_READY),
        (Phase.PHASE_DRAINING, ERROR_DRAINING),
        (Phase.PHASE_STOPPED, ERROR_DRAINING),
        (Phase.PHASE_READY, ERROR_ENGINE_DIED),
    ],
)
async def test_a_refusal_that_another_replica_may_mend_says_so(client, replica, phase, code):
    replica.phase = phase
    answer = await client.post("/v1/completions", json={"model": "m", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, code)
    assert (answer.headers[HEADER_SHOULD_RETRY], answer.headers[HEADER_RETRY_AFTER]) == ("true", "1")
    assert replica.in_flight == 0


async def refused_as_overloaded(client):
    answer = await client.post("/v1/completions", json={"model": "m", "prompt": "x"})
    assert answer.json()["error"]["code"] in (ERROR_OVERLOADED, ERROR_ENGINE_DIED)
    assert (answer.status_code, answer.headers[HEADER_SHOULD_RETRY], answer.headers[HEADER_RETRY_AFTER]) == (503, "true", "1")
    return answer.json()["error"]["code"] == ERROR_OVERLOADED


async def test_a_replica_that_holds_too_many_requests_refuses_the_next_one_until_one_ends(client, replica, admission):
    replica.phase = Phase.PHASE_READY
    replica.limits = Ready(64, 1024, 16, 40, 10)
    with ExitStack() as held:
        for _ in range(159):
            held.enter_context(admission.admit())
        assert not await refused_as_overloaded(client)
        with admission.admit():
            assert await refused_as_overloaded(client)
            assert replica.in_flight == 160
        assert not await refused_as_overloaded(client)


async def test_a_replica_that_holds_too_many_bytes_refuses_the_next_one_until_they_are_gone(client, replica, admission):
    replica.phase = Phase.PHASE_READY
    with admission.reading() as hold:
        hold(128 * 2**20)
        assert await refused_as_overloaded(client)
        assert replica.in_flight == 0
    assert not await refused_as_overloaded(client)
    assert (admission.held_bytes, replica.in_flight) == (0, 0)


async def test_only_a_replica_that_accepts_is_healthy(client, replica):
    for phase, status in ((Phase.PHASE_LOADING, 503), (Phase.PHASE_READY, 200), (Phase.PHASE_DRAINING, 503)):
        replica.phase = phase
        assert (await client.get("/health")).status_code == status
