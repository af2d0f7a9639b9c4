"""Orders to real daemon fronts with a simulated engine: drain, turn back, a stale epoch, wrong tokens, silence."""

import time

import pytest
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_OPERATOR
from pagoda_operator.api.errors import Superseded
from pagoda_operator.api.pods import Answer, DaemonState, Order
from pagoda_operator.client import daemons as module
from pagoda_operator.client.daemons import Daemons, OwnToken
from support.kube.issuer import Issuer
from support.servers.local_front import local_config, local_front


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A daemon in this very process is as slow as this process."""
    monkeypatch.setattr(module, "TIMEOUT_S", 60.0)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture
async def front(tmp_path, issuer):
    config = local_config(tmp_path, step_ms=5, auth=issuer.config(), drain_timeout="10m")
    async with local_front(config) as made:
        yield made


def in_ms(seconds):
    return int((time.time() + seconds) * 1000)


def reported(deadline_ms, left_ms=0):
    return [Order("a", "uid-a", "127.0.0.1", deadline_ms, left_ms)]


@pytest.fixture
def voice(tmp_path, issuer):
    """Speaks with the operator's token, or another role's, at an epoch."""

    def make(front, epoch=1, role=ROLE_OPERATOR):
        file = tmp_path / f"token-{role}"
        file.write_text(issuer.token(role) + "\n")
        return Daemons(lambda: epoch, OwnToken(file), int(front.grpc.rpartition(":")[2]))

    return make


async def test_a_daemon_drains_and_serves_again_by_orders(front, voice):
    orders = voice(front)
    for _ in range(2):
        assert await orders.give(reported(in_ms(600))) == {"uid-a": Answer(DaemonState.DRAINING, 0)}
        assert await orders.give(reported(in_ms(600))) == {"uid-a": Answer(DaemonState.DRAINING, 0)}
        assert front.front.replica.drain.draining
        assert await orders.give(reported(None)) == {"uid-a": Answer(DaemonState.SERVING, 0)}
        assert not front.front.replica.drain.draining


@pytest.mark.parametrize("skew_s", [-3000, 3000])
async def test_a_drain_order_has_a_duration_since_clocks_differ(skew_s, front, voice):
    await voice(front).give(reported(in_ms(300 + skew_s), 300_000))
    assert 0 < front.front._control.left_s() <= 300


async def test_an_order_of_a_former_leader_ends_its_process(front, voice):
    await voice(front, epoch=5).give(reported(in_ms(600)))
    for order in (reported(None), reported(in_ms(600))):
        with pytest.raises(Superseded, match="epoch 4"):
            await voice(front, epoch=4).give(order)
    assert front.front.replica.drain.draining


async def test_a_terminating_daemon_is_no_sign_of_another_leader(front, voice):
    front.front._control.end()  # SIGTERM, without the end that follows when nothing runs
    deadline = front.front.replica.drain.until
    assert await voice(front).give(reported(None)) == {"uid-a": Answer(DaemonState.ENDING)}
    assert front.front.replica.drain.until == deadline


async def test_an_order_with_another_role_is_refused(front, voice, issuer):
    assert await voice(front, role=ROLE_GATEWAY).give(reported(in_ms(600))) == {"uid-a": Answer(DaemonState.REFUSED)}
    nameless = Daemons(lambda: 0, port=int(front.grpc.rpartition(":")[2]))
    assert await nameless.give(reported(in_ms(600))) == {"uid-a": Answer(DaemonState.REFUSED)}
    assert not front.front.replica.drain.draining


async def test_an_order_for_a_former_pod_of_the_address_counts_as_no_answer(front, voice):
    front.front._control._uid = "uid-b"
    for order in (reported(in_ms(600)), reported(None)):
        assert await voice(front, epoch=9).give(order) == {"uid-a": Answer(DaemonState.SILENT)}
    assert (front.front.replica.drain.draining, front.front.replica.drain.epoch) == (False, 0)
    front.front._control._uid = "uid-a"
    assert await voice(front).give(reported(in_ms(600))) == {"uid-a": Answer(DaemonState.DRAINING, 0)}


async def test_no_daemon_at_the_address_counts_as_no_answer(monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    assert await Daemons(lambda: 0, port=1).give(reported(in_ms(600))) == {"uid-a": Answer(DaemonState.SILENT)}


async def test_without_orders_no_daemon_is_dialled():
    assert await Daemons(lambda: 0).give([]) == {}
