"""Events: one per change of the Ready reason, within a limit, counted where they come again."""

import asyncio
import contextlib
from datetime import timedelta

import pytest
from pagoda_operator.api.errors import Denied, Unavailable
from pagoda_operator.api.state import EVENTS, PODS
from pagoda_operator.run import events
from pagoda_operator.run.events import PER_MINUTE, EventText, Recorder
from pagoda_operator.watch.observe import observe
from support.harness.harness import KEY, Harness, now
from support.harness.unhealthy import UnhealthyHarness
from support.kube.fake_api import crashed


def reasons(harness):
    return [event["reason"] for event in harness.api.of(EVENTS)]


def status(reason, *, stalled=False, message="m"):
    state = "True" if stalled else "False"
    return {"conditions": [{"type": "Ready", "reason": reason, "message": message}, {"type": "Stalled", "status": state}]}


@pytest.fixture
def harness():
    return Harness()


@pytest.fixture
def report(harness):
    """Tells a status as if it were the next one, `later` seconds after the start."""
    recorder = Recorder(harness.api, "operator-1")
    observed = harness.observed()

    def record(reason, later=0.0, **more):
        recorder.record(observed, status(reason, **more), now() + timedelta(seconds=later))
        asyncio.run(recorder.write_pending())

    return record


def test_each_reason_of_a_start_is_one_event(harness):
    harness.settle()
    harness.make_ready()
    assert reasons(harness)[-1] == "Available"
    assert len(set(reasons(harness))) == len(reasons(harness))
    (last,) = [event for event in harness.api.of(EVENTS) if event["reason"] == "Available"]
    assert (last["type"], last["regarding"]["name"], last["note"]) == ("Normal", "tiny", "1 of 1 replicas ready")
    assert last["regarding"]["uid"] == harness.observed().meta.uid


def test_no_event_at_rest_or_after_a_restart(harness):
    harness.settle()
    harness.make_ready()
    reported = list(harness.api.reported)
    harness.restart()
    harness.settle()
    assert harness.api.reported == reported


def test_each_step_of_a_replacement_is_told_with_its_cause():
    harness = UnhealthyHarness(1)
    harness.pass_time(100)  # past the limit of a minute
    harness.break_device(harness.pods[0])
    harness.settle()
    harness.pass_time(100)
    harness.make_ready()
    told = [(event["type"], event["reason"], event["note"]) for event in harness.api.of(EVENTS)]
    fault = next(note for kind, reason, note in told if (kind, reason) == ("Warning", "DeviceFault"))
    assert "the device is faulty: Xid 79. A successor is starting." in fault
    well = next(note for kind, reason, note in told if (kind, reason) == ("Normal", "Well"))
    assert "The last fault was DeviceFault, from 2026-01-01T00:01:40Z on" in well
    assert "Xid 79" in well
    assert harness.reported() == ("False", "Well", well)
    harness.restart()
    harness.settle()
    assert harness.reported() == ("False", "Well", well)


def test_an_eviction_is_told_once_with_its_cause(harness):
    harness.settle()
    harness.make_ready()
    (pod,) = harness.api.of(PODS)
    why = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True"} | why)
    pod["spec"]["nodeName"] = "n1"
    for _ in range(3):
        harness.run()
    (event,) = [event for event in harness.api.of(EVENTS) if event["reason"] == "ReplicaEvicted"]
    assert event["note"] == f"Replica {pod['metadata']['name']} leaves node n1: EvictionByEvictionAPI: Eviction API: evicting"
    assert "series" not in event
    harness.later += timedelta(hours=1)
    harness.restart()
    harness.run()
    assert reasons(harness).count("ReplicaEvicted") == 1


def test_a_takeover_is_told_about_the_lease(harness):
    recorder = Recorder(harness.api, "operator-1")
    recorder.record_leader("pagoda-system", 7, "operator-0 did not renew the Lease", now())
    asyncio.run(recorder.write_pending())
    (event,) = [event for event in harness.api.of(EVENTS) if event["reason"] == "LeaderElected"]
    assert event["note"] == "operator-1 leads with epoch 7: operator-0 did not renew the Lease"
    assert (event["regarding"]["kind"], event["metadata"]["namespace"], event["type"]) == ("Lease", "pagoda-system", "Normal")


def test_every_event_is_a_line_in_the_log(harness, report, capsys):
    report("CrashLooping", message="tiny-1 ended with exit code 1: EngineDied")
    line = next(line for line in capsys.readouterr().out.splitlines() if "reported" in line)
    assert all(part in line for part in ("CrashLooping", "EngineDied", "tiny"))


def test_problems_are_warnings(harness):
    harness.settle()
    harness.api.of(PODS)[0]["status"] = crashed()
    harness.settle()
    assert [(event["type"], event["reason"]) for event in harness.api.of(EVENTS)][-1] == ("Warning", "ModelRejected")


def test_a_repeated_event_raises_the_count_of_its_series(harness, report):
    for turn in range(3):
        report("LoadingModel", later=70 * turn)
        report("CrashLooping", later=70 * turn + 1)
    first = next(event for event in harness.api.of(EVENTS) if event["reason"] == "CrashLooping")
    assert sorted(reasons(harness)) == ["CrashLooping", "LoadingModel"]
    assert first["series"]["count"] == 3
    assert first["series"]["lastObservedTime"] > first["eventTime"]


def test_after_six_minutes_a_repeated_event_is_a_new_one(harness, report):
    report("CrashLooping")
    report("CrashLooping", later=361)
    assert reasons(harness) == ["CrashLooping"] * 2


def test_events_past_the_limit_are_counted_and_written_later(harness, report):
    for turn in range(20):
        report("CrashLooping", later=turn)
    assert len(harness.api.reported) == PER_MINUTE
    report("CrashLooping", later=100)
    (event,) = harness.api.of(EVENTS)
    assert event["series"]["count"] == 21


@pytest.mark.parametrize("error", [Denied("403"), Unavailable("503")])
def test_a_refused_event_changes_nothing_else(error):
    calm, refused = Harness(), Harness()
    refused.api.refuse["Event"] = error
    for harness in (calm, refused):
        harness.settle()
        harness.make_ready()
    assert refused.api.journal == calm.api.journal
    assert refused.api.of(EVENTS) == []


def test_events_of_a_deleted_service_are_forgotten(harness):
    harness.settle()
    assert harness.operator._dependencies.events._correlations
    harness.api.objects.pop(("InferenceService", "ns", "tiny"))
    harness.run()
    assert not harness.operator._dependencies.events._correlations


def test_a_long_note_is_cut(harness, report):
    report("InvalidSpec", stalled=True, message="x" * 5000)
    (event,) = harness.api.of(EVENTS)
    assert (event["type"], len(event["note"])) == ("Warning", 1024)


def test_events_with_different_notes_are_not_counted_together(harness, report):
    report("ImagePull", message="a")
    report("ImagePull", message="b")
    assert len(harness.api.of(EVENTS)) == 2
    assert EventText("Warning", "ImagePull", "a") != EventText("Warning", "ImagePull", "b")


async def reported_beside(harness, words, until):
    """Words that are written beside the runs, until so many Events were tried."""
    recorder, tried = Recorder(harness.api, "operator-1"), asyncio.Event()
    observed, wrote = await observe(harness.api, KEY), []

    def count(verb, kind, _name):
        wrote.append((verb, kind))
        if len(wrote) == until:
            tried.set()

    harness.api.before_write = count
    for word in words:
        recorder.record(observed, status(word), now())
    assert not wrote  # nobody waited for one
    before = recorder.waiting()
    running = asyncio.ensure_future(recorder.run())
    async with asyncio.timeout(60):
        await tried.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert (before, recorder.waiting()) == (until, 0)


async def test_queued_events_are_written_in_order(harness):
    await reported_beside(harness, ["ScalingUp", "Available"], until=2)
    assert reasons(harness) == ["ScalingUp", "Available"]


@pytest.mark.parametrize("error", [Unavailable("503"), ValueError("a bug")])
async def test_an_event_that_cannot_be_written_does_not_block_the_next(harness, error):
    harness.api.refuse["Event"] = error
    await reported_beside(harness, ["ScalingUp", "Available"], until=2)
    assert reasons(harness) == []


async def test_past_the_queue_limit_the_oldest_events_are_lost_and_logged(harness, monkeypatch, capsys):
    monkeypatch.setattr(events, "MOST_WAITING", 4)
    await reported_beside(harness, [f"Reason{number}" for number in range(6)], until=4)
    assert reasons(harness) == [f"Reason{number}" for number in range(2, 6)]
    assert capsys.readouterr().out.count("event_lost") == 2
