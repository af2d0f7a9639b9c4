"""Probe verdicts, and a probe thread that answers whatever else stands still."""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from pagoda_contracts.launch import HealthConfig
from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.api.grpc.watch import Identity, frame
from pagoda_daemon.core.messages import Loading, Ready, Stats
from pagoda_daemon.engine.client import EngineLink
from pagoda_daemon.health import watchdog
from pagoda_daemon.health.replica import Limits, ProbeServer, Replica, keep_beating, live, ready, started
from pagoda_daemon.health.watchdog import loop_turns

LIMITS = Limits(heartbeat=10.0, load_stall=60.0)
LOADED = Ready(max_model_len=64, vocab_size=8, block_size=16, blocks_total=4, max_concurrency=2)


def replica(**changes):
    made = Replica(born=100.0)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_the_state_says_how_long_it_took_from_the_end_of_the_load_to_ready(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("pagoda_daemon.engine.client.time", SimpleNamespace(monotonic=lambda: clock.now))
    found = replica()
    link = SimpleNamespace(_replica=found, _take_loading=lambda message: EngineLink._take_loading(link, message))
    for clock.now, message in ((110.0, Loading(0.5)), (120.0, Loading(1.0)), (124.5, Loading(1.0)), (124.5, LOADED)):
        assert found.warm_s == 0.0
        EngineLink._take(link, message)
    assert frame(found, Identity(("m",), "", ""), 1, 130.0).warm_ms == 4_500


@pytest.mark.parametrize(
    ("changes", "now", "ok", "why"),
    [
        ({}, 105.0, True, "loading"),
        ({"loop_beat": 165.0}, 165.0, False, "loading stands at 0% for 65 s"),
        ({"loop_beat": 165.0, "load_moved": 160.0, "load_progress": 0.4}, 165.0, True, "loading, 40%"),
        ({"loop_beat": 165.0, "engine_beat": 160.0, "limits": LOADED}, 165.0, True, "engine 5.0 s"),
        ({"loop_beat": 165.0, "engine_beat": 150.0, "limits": LOADED}, 165.0, False, "engine's heartbeat is 15.0 s old"),
        ({"loop_beat": 150.0, "engine_beat": 165.0, "limits": LOADED}, 165.0, False, "front's loop has not turned for 15.0 s"),
        ({"loop_beat": 156.0, "engine_beat": 154.5, "limits": LOADED}, 165.0, True, "front 9.0 s, engine 1.5 s"),
        ({"loop_beat": 156.0, "engine_beat": 154.5, "limits": LOADED}, 171.0, False, "front's loop has not turned for 15.0 s"),
    ],
)
def test_live_means_the_loops_turn_or_the_load_moves(changes, now, ok, why):
    verdict = live(replica(**changes), now, LIMITS)
    assert verdict.ok is ok
    assert why in verdict.why


@pytest.mark.parametrize(
    ("step_started", "predicted_step_ms", "ok"),
    [(0.0, 0, True), (380.0, 50, True), (379.0, 50, False), (379.0, 7000, True), (360.0, 7000, True), (359.0, 7000, False)],
)
def test_a_step_that_outlives_its_prediction_by_far_is_a_hung_device(step_started, predicted_step_ms, ok):
    busy = {"limits": LOADED, "loop_beat": 500.0, "engine_beat": 500.0}
    verdict = live(replica(step_started=step_started, predicted_step_ms=predicted_step_ms, **busy), 500.0, Limits())
    assert verdict.ok is ok
    assert ok or f"predicted at {predicted_step_ms} ms" in verdict.why


class Watched:
    """A watchdog over `replica`, whose two ends are written down; it never ends this process."""

    def __init__(self, monkeypatch, replica, limits):
        quiet = {name: lambda *_, **__: None for name in ("dump_traceback", "dump_traceback_later", "cancel_dump_traceback_later")}
        monkeypatch.setattr(watchdog, "faulthandler", SimpleNamespace(**quiet))
        monkeypatch.setattr(watchdog, "_GRACE_S", 0.0)
        self.ended, self.why = threading.Event(), []
        self.watchdog = watchdog.Watchdog(replica, limits, watchdog.Ends(self.end, self.end))

    def end(self, why):
        self.why.append(why)
        self.ended.set()


@pytest.mark.parametrize("phase", [Phase.PHASE_READY, Phase.PHASE_DRAINING])
def test_the_watchdog_ends_a_hung_replica_also_while_it_drains(monkeypatch, phase):
    now = time.monotonic()
    hung = replica(phase=phase, limits=LOADED, loop_beat=now + 1000.0, engine_beat=now)
    watched = Watched(monkeypatch, hung, Limits(heartbeat=400.0))
    try:
        assert watched.ended.wait(60)
    finally:
        watched.watchdog.close()
    assert "engine's heartbeat is 1000.0 s old" in watched.why[0]


def test_started_means_loaded_or_moving():
    assert started(replica(), 100.0, LIMITS).ok
    assert not started(replica(), 161.0, LIMITS).ok
    assert started(replica(limits=LOADED), 1e6, LIMITS).ok


@pytest.mark.parametrize(
    ("phase", "ok", "why"),
    [
        (Phase.PHASE_LOADING, False, "loading, 0%"),
        (Phase.PHASE_READY, True, "ready, 3 in flight"),
        (Phase.PHASE_DRAINING, False, "draining, 3 in flight"),
        (Phase.PHASE_STOPPED, False, "draining"),
    ],
)
def test_ready_means_accepting(phase, ok, why):
    verdict = ready(replica(phase=phase, in_flight=3), 0.0, LIMITS)
    assert (verdict.ok, why in verdict.why) == (ok, True)


def test_a_stopped_replica_enters_no_other_phase():
    made = replica(phase=Phase.PHASE_STOPPED)
    made.enter(Phase.PHASE_READY)
    assert made.phase == Phase.PHASE_STOPPED


def ask(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()


@pytest.mark.deep
async def test_probes_answer_while_the_loop_and_the_engine_stand_still():
    made = Replica(born=0.0, limits=LOADED, phase=Phase.PHASE_READY)
    made.engine_beat = float("inf")  # as young as can be, until it is set back below
    server, patient = (ProbeServer(made, "127.0.0.1", 0, Limits(heartbeat=beat)) for beat in (0.6, 60.0))
    beating = asyncio.ensure_future(keep_beating(made))
    try:
        await asyncio.sleep(0)
        assert (await asyncio.to_thread(ask, patient.port, PATH_LIVE))[0] == 200
        seen: list[tuple[int, str]] = []
        red = threading.Event()

        def watch():
            while not red.is_set():
                seen.append(ask(server.port, PATH_LIVE))
                if seen[-1][0] == 503:
                    red.set()

        threading.Thread(target=watch, daemon=True).start()
        assert red.wait(60)  # blocks the loop: nothing beats until the probe has turned red
        assert "front's loop" in seen[-1][1]
        assert ask(server.port, PATH_STARTUP)[0] == 200
        assert ask(server.port, PATH_READY)[0] == 200
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(ask, server.port, PATH_LIVE))[0] != 200:  # the loop turns again
                await asyncio.sleep(0)
        made.engine_beat = 0.0
        status, why = await asyncio.to_thread(ask, patient.port, PATH_LIVE)
        assert (status, "engine's heartbeat" in why) == (503, True)
        assert ask(server.port, "/")[0] == 404
    finally:
        beating.cancel()
        server.close()
        patient.close()


def test_a_front_that_cannot_be_dialled_yet_is_not_ready():
    made = Replica(born=0.0, limits=LOADED, phase=Phase.PHASE_READY, listening=False)
    assert ready(made, 1.0, Limits()) == (False, "not listening yet")
    made.listening = True
    assert ready(made, 1.0, Limits()).ok


def test_the_configuration_sets_the_ages_and_its_absence_the_defaults():
    assert Limits.of(None) == Limits()
    made = Limits.of(HealthConfig(progress_timeout="5s", load_timeout="1m"))
    assert (made.heartbeat, made.step, made.load_stall, made.step_factor) == (5.0, 5.0, 60.0, Limits().step_factor)


@pytest.mark.parametrize(
    ("waiting", "stepped", "step_started", "ok"),
    [(0, 100.0, 0.0, True), (3, 100.0, 0.0, False), (3, 495.0, 0.0, True), (3, 100.0, 499.0, True)],
)
def test_requests_that_wait_beside_an_idle_device_are_no_progress(waiting, stepped, step_started, ok):
    busy = {"limits": LOADED, "loop_beat": 500.0, "engine_beat": 500.0}
    made = replica(stats=Stats(waiting=waiting), stepped=stepped, step_started=step_started, **busy)
    verdict = live(made, 500.0, LIMITS)
    assert verdict.ok is ok
    assert ok or f"{waiting} requests wait" in verdict.why


def test_requests_that_wait_for_their_grammar_expect_no_step():
    made = replica(stats=Stats(compiling=3), stepped=100.0, step_started=0.0, limits=LOADED, loop_beat=500.0, engine_beat=500.0)
    assert live(made, 500.0, LIMITS).ok


def test_a_chunk_of_a_prompt_is_progress_and_so_is_nobody_who_waits():
    made = replica()
    made.heard(Stats(waiting=2, steps=1), 200.0)
    assert made.stepped == 200.0
    made.heard(Stats(waiting=2, steps=1), 210.0)
    assert made.stepped == 200.0
    made.heard(Stats(waiting=2, steps=2), 220.0)
    assert made.stepped == 220.0
    made.heard(Stats(steps=2), 230.0)
    assert made.stepped == 230.0


def test_a_loop_that_stands_still_cannot_be_asked_to_end_in_order():
    assert loop_turns(replica(loop_beat=495.0), 500.0, LIMITS)
    assert not loop_turns(replica(loop_beat=480.0), 500.0, LIMITS)
