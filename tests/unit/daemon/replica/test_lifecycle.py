"""Starts and ends of whole replicas, and what they leave: no process, no socket, no shared memory, no descriptor, no thread."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from pagoda_contracts.launch import DaemonConfig, HealthConfig
from pagoda_contracts.names import PATH_READY
from pagoda_daemon.api.front.front import Backing, Front, Ports
from pagoda_daemon.core.messages import Submit, ToEngine
from pagoda_daemon.health.replica import Replica as Health
from pagoda_daemon.process.settings import Settings
from pagoda_daemon.simulated.replicas.engine import LocalEngine
from pagoda_daemon.simulated.replicas.text import VOCAB
from pagoda_daemon.text.tokens import ModelText
from support.clients.outcomes import MixedClients
from support.engine.tiny_model import tiny_model
from support.judges.leftovers import ends_clean, gives_back_all_but, held_by_nobody, processes_of
from support.servers.replica import NAME, PATIENCE_S, Replica, replica_config, start_daemon, start_replica

pytestmark = pytest.mark.deep

BODY = {"model": NAME, "max_tokens": 400, "ignore_eos": True, "temperature": 0}
SLOW_MS = 100  # 40 s of answer: it is under way still when a busy machine gets to what ends it
LIVES = 44  # in this process, beside six of processes; tests/sweeps has more of those


async def never_ready(config: DaemonConfig) -> Replica:
    replica = start_daemon(config)
    await asyncio.to_thread(replica.wait_listening)
    return replica


async def in_use(config: DaemonConfig) -> tuple[Replica, MixedClients]:
    replica = await asyncio.to_thread(start_replica, config)
    clients = MixedClients(replica.http, BODY)
    await clients.streaming()
    while not await asyncio.to_thread(let_in, replica, clients):
        await asyncio.sleep(0.01)
    return replica, clients


def let_in(replica: Replica, clients: MixedClients) -> bool:
    """Whether every client's request has been, also of the one that sees nothing until it has all."""
    over = sum(client.ended > 0 for client in clients.outcomes)
    found = re.search(r"(\d+) in flight", replica.probe(PATH_READY)[1])
    return found is not None and over + int(found[1]) >= len(clients.outcomes)


async def test_a_replica_leaves_nothing_whenever_it_is_stopped(tmp_path):
    before = held_by_nobody()
    quick = replica_config(tmp_path, step_ms=2, drain_timeout="20s")
    with await never_ready(quick) as loading:
        loading.terminate()
        await ends_clean(loading)
    replica, clients = await in_use(replica_config(tmp_path, step_ms=2, drain_timeout="20s"))
    with replica:
        replica.terminate()
        assert [client.error for client in await clients.ended()] == [None] * 4, "they finish within the time to drain"
        await ends_clean(replica)
    replica, clients = await in_use(replica_config(tmp_path, step_ms=SLOW_MS, drain_timeout="1ms"))
    with replica:
        replica.terminate()
        ended = await clients.ended()
        assert {client.error for client in ended} == {"draining"}
        assert all(client.clean for client in ended)
        await ends_clean(replica)
    await gives_back_all_but(before)


async def test_a_second_signal_ends_a_drain_that_a_frozen_engine_holds_up(tmp_path):
    config = replica_config(tmp_path, step_ms=SLOW_MS, drain_timeout="10m", health=HealthConfig(progress_timeout="10m"))
    replica, clients = await in_use(config)
    with replica:
        os.kill(replica.engine_pid(), signal.SIGSTOP)
        replica.terminate()
        while (await asyncio.to_thread(replica.probe, PATH_READY))[0] != 503:
            await asyncio.sleep(0.01)
        replica.terminate()
        ended = await clients.ended()
        assert {client.error for client in ended} == {"draining"}
        await ends_clean(replica, 1)  # within our patience, a part of the time to drain; 1 is the second signal's own way out


async def test_the_engine_dies_with_a_killed_front_and_the_next_one_starts_in_its_place(tmp_path):
    config = replica_config(tmp_path, step_ms=SLOW_MS)
    replica, clients = await in_use(config)
    engine = os.pidfd_open(replica.engine_pid())
    gone = select.poll()
    gone.register(engine, select.POLLIN)
    replica.process.kill()
    assert await asyncio.to_thread(gone.poll, PATIENCE_S * 1000), "the engine outlived its front"
    os.close(engine)
    assert {client.error for client in await clients.ended()} == {"broken"}
    replica.process.wait()
    assert processes_of(replica.run_dir) == []
    with await asyncio.to_thread(start_replica, config) as again:
        again.terminate()
        await ends_clean(again)
    replica.close()


async def test_a_replica_with_a_real_model_leaves_nothing(tmp_path):
    before = held_by_nobody()
    config = replica_config(tmp_path)
    real = config.model.model_copy(update={"path": str(await asyncio.to_thread(tiny_model))})
    config = config.model_copy(update={"model": real, "testing": None})
    replica, clients = await in_use(config)
    with replica:
        replica.terminate()
        assert [client.error for client in await clients.ended()] == [None] * 4
        await ends_clean(replica)
    await gives_back_all_but(before)


@dataclass
class Inventory:
    """What this process holds."""

    threads: int
    descriptors: int
    listening: int

    @classmethod
    def taken(cls) -> Inventory:
        gc.collect()  # what is in cycles has descriptors too, and is nobody's
        sockets = Path("/proc/self/net/tcp").read_text().splitlines()
        inodes = {line.split()[9] for line in sockets[1:] if line.split()[3] == "0A"}
        # Pipes lead to the processes that render chat templates: they belong to the text, which these fronts share.
        links = [link for path in Path("/proc/self/fd").iterdir() if not (link := _link(path)).startswith("pipe:")]
        mine = [link for link in links if link.startswith("socket:[") and link[8:-1] in inodes]
        threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]  # the pool of this test's own loop
        return cls(len(threads), len(links), len(mine))


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


class Counting(LocalEngine):
    """Of requests that reached it."""

    asked = 0

    def _send(self, message: ToEngine) -> bool:
        self.asked += isinstance(message, Submit)
        return super()._send(message)


async def live_and_stop(config: DaemonConfig, text: ModelText, ask: Callable[[str], MixedClients] | None) -> None:
    """A front of its own over an engine in this process: ready, asked, stopped, and over."""
    listening = asyncio.get_running_loop().create_future()

    def announce(ports: Ports) -> None:
        listening.set_result(ports.http)

    engines: list[Counting] = []

    def engine(replica: Health) -> Counting:
        engines.append(Counting(config, 0.0, replica))
        return engines[0]

    front = Front(Settings(config, Path(), 20.0), Backing(engine, lambda: text))
    life = asyncio.ensure_future(front.run(announce))
    address = f"127.0.0.1:{await listening}"
    while not front.replica.accepting:
        await asyncio.sleep(0.01)
    clients = ask(address) if ask else None
    if clients is not None:
        while engines[0].asked < len(clients.outcomes):
            await asyncio.sleep(0.01)
    front.stop()
    await life
    if clients is not None:
        assert [client.error for client in await clients.ended()] == [None] * len(clients.outcomes)
    with pytest.raises(httpx.ConnectError):
        await httpx.AsyncClient(timeout=PATIENCE_S).get(f"http://{address}/health")


async def test_starts_and_stops_leave_no_thread_no_descriptor_and_no_listener(tmp_path):
    made = replica_config(tmp_path, step_ms=1)
    assert made.testing is not None
    assert made.testing.simulated is not None
    simulated = made.testing.simulated.model_copy(update={"vocab_size": VOCAB})
    config = made.model_copy(update={"testing": made.testing.model_copy(update={"simulated": simulated})})
    text = ModelText(tmp_path / "toy-model")

    async def lives(count: int) -> None:
        def ask(address: str) -> MixedClients:
            return MixedClients(address, {**BODY, "max_tokens": 20}, streams=1, wholes=1)

        await asyncio.gather(*(live_and_stop(config, text, ask if number % 2 else None) for number in range(count)))

    await lives(4)  # what the libraries make once stays
    before = Inventory.taken()
    for _ in range(4):
        await lives((LIVES - 4) // 4)
    deadline = time.monotonic() + PATIENCE_S
    while (after := Inventory.taken()) != before and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    assert after == before
