"""Listening to a replica goes on whatever happens to one frame; the wire's words become the picker's."""

import asyncio

from pagoda_contracts.pb.daemon_pb2 import Phase, State
from pagoda_gateway.watch.fleet import Member
from pagoda_gateway.watch.state_streams import Streams, parse_state
from support.servers.scripted_replica import Replica, running


class Ear:
    """Chokes on the first frame."""

    def __init__(self):
        self.frames = 0
        self.heard = asyncio.Event()

    def hear(self, *_news):
        self.frames += 1
        if self.frames == 1:
            raise ValueError("a fault of ours")
        self.heard.set()

    def lost(self, _name): ...


async def test_a_fault_of_our_own_is_logged_and_the_replica_is_dialled_again(capsys):
    ear = Ear()
    streams = Streams(ear, "test", lambda: 0.0)
    async with running(Replica("a")) as replica:
        streams.follow(Member("ns/a", "ns/s", "", replica.http, replica.grpc, leaving=False))
        try:
            await asyncio.wait_for(ear.heard.wait(), 60)
        finally:
            await streams.close()
    assert "a fault of ours" in capsys.readouterr().out


def test_the_step_under_way_reaches_the_picker():
    frame = parse_state(State(phase=Phase.PHASE_READY, step_age_ms=7, predicted_step_ms=9))
    assert (frame.step_age_ms, frame.predicted_step_ms) == (7, 9)
