"""KV events on the wire, read by a decoder that knows only vLLM's format: sequence, replay, gaps, and readers that do not read."""

import asyncio
import socket
from contextlib import contextmanager

import httpx
import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio
from pagoda_contracts.launch import KvEventsConfig
from pagoda_contracts.prefix import Scope
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.engine.events import KvEvents, _encoded, kv_events
from pagoda_daemon.kv.chain import Chain
from pagoda_daemon.kv.ledger import BlockLedger, Removed, Stored
from pagoda_daemon.simulated.replicas.text import VOCAB
from support.clients.kv_decoder import chain_to, decoded, picture, replay, requester
from support.servers.local_front import NAME, local_config, local_front
from support.servers.loopback import own_net


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def published(monkeypatch):
    """The publishers of local replicas, which know the ports that the kernel chose."""
    made = []

    @contextmanager
    def noted(config):
        with kv_events(config) as events:
            made.append(events)
            yield events

    monkeypatch.setattr("pagoda_daemon.simulated.replicas.engine.kv_events", noted)
    return made


async def subscribed(listener, port):
    """Returns when the publisher has it: what came before is lost to it."""
    with listener.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
        listener.connect(f"tcp://127.0.0.1:{port}")
        async with asyncio.timeout(60):
            await monitor.recv_multipart()
        listener.disable_monitor()


@pytest.mark.deep
async def test_a_replicas_prompts_can_be_read_back_from_its_events(tmp_path, context, published):
    wanted = KvEventsConfig(port=0, replay_port=0, topic="kv")
    config = local_config(tmp_path, kv_events=wanted, engine={"kv_bytes": 8 * 16 * 40})
    prompts = [[(turn * 7 + at) % 90 for at in range(100 + turn)] for turn in range(8)]
    listener = zmq.asyncio.Context.shadow(context).socket(zmq.SUB)
    listener.linger = 0
    listener.subscribe(b"kv")
    async with local_front(config) as front, httpx.AsyncClient(timeout=60) as client:

        async def ask(prompt):
            body = {"model": NAME, "prompt": prompt, "max_tokens": 4, "ignore_eos": True}
            answer = await client.post(f"http://{front.http}/v1/completions", json=body)
            assert answer.status_code == 200

        (publisher,) = published
        await subscribed(listener, publisher.port)
        heard = asyncio.ensure_future(listener.recv_multipart())
        for first in range(VOCAB):  # the subscription is on its way: what is published until it is there is lost to it
            await ask([first] * 20)
            if heard.done():
                break
        for prompt in prompts:
            await ask(prompt)
        async with asyncio.timeout(60):
            topic, number, payload = await heard
        assert topic == b"kv"
        batches = await asyncio.to_thread(replay, context, publisher.replay_port, 0)
    listener.close()
    assert [number for number, _ in batches] == list(range(len(batches)))
    assert msgspec.msgpack.decode(payload) == batches[int.from_bytes(number, "big")][1]
    kinds = [kind for kind, *_ in decoded(batches)]
    assert kinds[0] == "AllBlocksCleared"
    assert "BlockRemoved" in kinds, "40 blocks never ran out: the run shows little"
    known = picture(batches)
    assert len(known) <= 40
    chains = {chain_to(known, one) for one, (parent, _) in known.items() if parent is None or parent in known}
    assert any(tuple(prompts[-1][:96]) == tokens[:96] for tokens in chains)


def stored(number):
    return [Stored((number,), None, tuple(range(16)))]


@pytest.fixture
def events():
    made = KvEvents("127.0.0.1", KvEventsConfig(port=0, replay_port=0, buffer_batches=300))
    yield made
    made.close()


def test_a_gap_is_filled_from_the_number_that_is_missing(events, context):
    for number in range(10):
        events.publish(stored(number), 16, 1.0)
    assert [number for number, _ in replay(context, events.replay_port, 6)] == [6, 7, 8, 9]
    assert replay(context, events.replay_port, 10) == []
    assert replay(context, events.replay_port, 2**63) == []


def test_what_is_kept_is_bounded_and_a_replay_begins_with_the_oldest(events, context):
    for number in range(1000):
        events.publish(stored(number), 16, 1.0)
    assert len(events._kept) == 300
    found = replay(context, events.replay_port, 5)
    assert [number for number, _ in found] == list(range(700, 1000))
    assert [event[1] for event in decoded(found)] == [[number] for number in range(700, 1000)]


def test_nonsense_is_refused_and_the_next_one_served(events, context):
    events.publish([Removed((1, 2))], 16, 1.0)
    for frames in ([b"x"], [b"", b"short"], [b"", b"x" * 9], [b"", b"1" * 8, b"more"], [b""]):
        with requester(context, events.replay_port, linger=1000) as asking:
            asking.send_multipart(frames)
    assert len(replay(context, events.replay_port, 0)) == 1


@pytest.mark.deep
def test_a_reader_that_asks_and_does_not_read_delays_no_other_for_long(context):
    events = KvEvents("127.0.0.1", KvEventsConfig(port=0, replay_port=0, buffer_batches=20_000))
    try:
        big = [Stored(tuple(range(32)), None, tuple(range(512)))]
        for _ in range(20_000):
            events.publish(big, 16, 1.0)
        with requester(context, events.replay_port, rcvhwm=1, rcvbuf=4096) as lazy:
            lazy.send_multipart([b"", bytes(8)])
            assert [number for number, _ in replay(context, events.replay_port, 19_999)] == [19_999]
    finally:
        events.close()


def test_closing_ends_every_thread_and_gives_the_ports_back():
    own = f"{own_net()}.1"  # where nobody else is given the ports between the two
    first = KvEvents(own, KvEventsConfig(port=0, replay_port=0))
    first.close()
    assert not first._thread.is_alive()
    again = KvEvents(own, KvEventsConfig(port=first.port, replay_port=first.replay_port))
    again.close()


def test_a_port_in_use_is_named_and_off_is_off(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for field in ("port", "replay_port"):
            wanted = KvEventsConfig(**{"port": 0, "replay_port": 0, field: port})
            with pytest.raises(ConfigRejected, match=r"kvEvents\.(port|replayPort)"):
                KvEvents("127.0.0.1", wanted)
    with kv_events(local_config(tmp_path)) as off:
        assert off is None


def test_blocks_of_an_adapter_carry_its_digest_where_the_format_has_the_adapters_name():
    encoded = _encoded(Stored((1,), None, (7,), "sha256:ab"), 1)
    assert encoded == ["BlockStored", (1,), None, (7,), 1, None, "GPU", "sha256:ab"]
    assert _encoded(Stored((1,), None, (7,)), 1)[-1] is None
    ledger = BlockLedger(1)
    ledger.stored(Chain.of(Scope("t", "m", "sha256:ab"), 1), [0], 0, np.asarray([7], np.int32))
    assert [event.adapter for event in ledger.take()] == ["sha256:ab"]
