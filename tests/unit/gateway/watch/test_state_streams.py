"""A replica's state is read on after an error in one frame; a message becomes a frame."""

import asyncio

from pagoda_contracts.pb.daemon_pb2 import AdapterPhase, AdapterState, Phase, State
from pagoda_gateway.watch.services import Replica as KnownReplica
from pagoda_gateway.watch.state_streams import StateStreams, parse_state
from support.servers.scripted_replica import Replica, running


class Sink:
    """Fails on the first frame."""

    def __init__(self):
        self.frames = 0
        self.heard = asyncio.Event()

    def update_state(self, *_news):
        self.frames += 1
        if self.frames == 1:
            raise ValueError("a fault of ours")
        self.heard.set()

    def stream_lost(self, _name): ...


async def test_an_error_of_the_gateway_is_logged_and_the_stream_is_opened_again(capsys):
    sink = Sink()
    streams = StateStreams(sink, "test", lambda: 0.0)
    async with running(Replica("a")) as replica:
        streams.open(KnownReplica("ns/a", "ns/s", "", replica.http, replica.grpc, draining=False))
        try:
            await asyncio.wait_for(sink.heard.wait(), 60)
        finally:
            await streams.close()
    assert "a fault of ours" in capsys.readouterr().out


def test_the_step_under_way_reaches_the_frame():
    frame = parse_state(State(phase=Phase.PHASE_READY, step_age_ms=7, predicted_step_ms=9, warm_ms=11))
    assert (frame.step_age_ms, frame.predicted_step_ms, frame.warm_ms) == (7, 9, 11)


def test_what_the_predicted_time_to_first_token_needs_reaches_the_frame():
    said = {"prefill_tokens": 1, "max_concurrency": 2, "block_size": 3, "step_base_us": 4.0, "step_token_us": 5.0, "step_row_us": 6.0}
    frame = parse_state(State(phase=Phase.PHASE_READY, **said))
    assert {name: getattr(frame, name) for name in said} == said


def test_adapters_reach_the_frame_and_those_in_memory_and_on_their_way_apart():
    phases = {
        "pirate": AdapterPhase.ADAPTER_PHASE_LOADED,
        "polite": AdapterPhase.ADAPTER_PHASE_ON_DISK,
        "late": AdapterPhase.ADAPTER_PHASE_FETCHING,
        "broken": AdapterPhase.ADAPTER_PHASE_FAILED,
    }
    known = [AdapterState(name=name, phase=phase) for name, phase in phases.items()]
    frame = parse_state(State(phase=Phase.PHASE_READY, adapters=known))
    assert (frame.adapters, frame.loaded, frame.coming) == ({"pirate", "polite"}, {"pirate"}, {"late", "broken"})
