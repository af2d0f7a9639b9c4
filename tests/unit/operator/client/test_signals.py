"""Gateways' frames become one view per service: what is counted once, what adds up, what silence means, and who is woken by what."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_operator.api.signals import BIN_S, CONFIRM_S, MISSING_S, Seen
from pagoda_operator.api.state import Key
from pagoda_operator.client.signals import Signals
from pagoda_operator.decide.scale.autoscale import autoscale
from pagoda_operator.decide.scale.bounds import Bounds
from pagoda_operator.decide.scale.demand import BRIDGED, KEPT, Bins, Level
from pagoda_operator.decide.scale.inputs import Capacity, History, Targets

KEY, UNIX = Key("ns", "s"), 1_700_000_000.0


class Harness:
    """Signals with a clock that the test turns, and what they called for."""

    def __init__(self):
        self.now = 1_000.0
        self.woken, self.measured = [], []
        self.signals = Signals(lambda: self.now, self.woken.append, self.measured.append)

    def hear(self, gateway="g1", *services, full=False):
        self.signals.hear(gateway, pb.Demand(full=full, services=services or (service(),)))

    def ticks(self, seconds, *gateways):
        """Time passes by seconds; those gateways send a frame without news each second."""
        for _ in range(round(seconds)):
            self.now += 1
            for gateway in gateways:
                self.signals.hear(gateway, pb.Demand())
            self.signals.tick()

    def of(self):
        return self.signals.of(KEY, UNIX)


def pod(name="p1", verdict=pb.VERDICT_FRESH, reason="ready", **fields):
    return pb.EndpointDemand(pod=name, verdict=verdict, reason=reason, **({"phase": 4} | fields))


def service(*pods, name="s", **fields):
    return pb.ServiceDemand(namespace="ns", name=name, endpoints=pods, **fields)


@pytest.mark.parametrize("ages", [(100, 900), (900, 100)], ids=["the one that knows faults heard it first", "heard it last"])
def test_a_device_has_failed_whichever_gateway_says_it_though_one_of_the_version_before_does_not(ages):
    knows = pod(reason="device-fault", device_fault="Xid 79", state_age_ms=ages[0])
    harness = Harness()
    harness.hear("g1", service(knows), full=True)
    harness.hear("g2", service(pod(state_age_ms=ages[1])), full=True)
    assert harness.of().endpoints["p1"].device_fault == "Xid 79"


def test_held_requests_are_summed_and_replica_reports_are_not():
    harness = Harness()
    harness.hear("g1", service(pod(), held=2, running=5, waiting=1, blocks_used=10, blocks_total=40), full=True)
    harness.hear("g2", service(pod(verdict=pb.VERDICT_DEAD, reason="silent"), held=1, wake=True, running=0), full=True)
    harness.ticks(BIN_S, "g1", "g2")
    seen = harness.of()
    (measure,) = seen.measures
    assert (seen.held, seen.wake, seen.fresh) == (3, True, True)
    assert (measure.held, measure.running, measure.waiting, measure.kv_utilization) == (3, 5, 1, 0.25)
    assert (measure.at, seen.watched_since) == (UNIX, UNIX - BIN_S)


def test_an_endpoint_is_as_the_most_favourable_gateway_sees_it():
    harness = Harness()
    harness.hear("g1", service(pod(verdict=pb.VERDICT_DEAD, reason="silent")), full=True)
    assert harness.of().endpoints["p1"].bad
    harness.hear("g2", service(pod(in_flight=3, warm_ms=4500)), full=True)
    found = harness.of().endpoints["p1"]
    assert (found.verdict, found.in_flight, found.warm_s) == (Seen.FRESH, 3, 4.5)


def test_a_replica_lacks_a_gateway_until_each_of_them_sends_it_requests():
    harness = Harness()
    harness.hear("g1", service(pod()), full=True)
    assert not harness.of().endpoints["p1"].lacking
    for not_yet in (service(), service(pod(verdict=pb.VERDICT_UNSPECIFIED, reason="unheard", phase=0)), service(pod(phase=3))):
        harness.hear("g2", not_yet, full=True)
        assert harness.of().endpoints["p1"].lacking
    woken = len(harness.woken)
    harness.hear("g2", service(pod(verdict=pb.VERDICT_SUSPECT, reason="suspect")), full=True)
    assert not harness.of().endpoints["p1"].lacking
    assert len(harness.woken) == woken + 1


def test_a_replica_that_loads_for_long_waits_for_each_gateway_all_the_same():
    harness = Harness()
    for gateway in ("g1", "g2"):
        harness.hear(gateway, service(pod(phase=2, reason="loading")), full=True)
    harness.ticks(MISSING_S + 10, "g1", "g2")
    harness.hear("g1", service(pod()))
    harness.signals.note_ready(KEY, ["p1"])
    assert harness.of().endpoints["p1"].lacking
    harness.ticks(MISSING_S - 1, "g1", "g2")
    assert harness.of().endpoints["p1"].lacking
    harness.ticks(2, "g1", "g2")
    assert not harness.of().endpoints["p1"].lacking


def test_a_ready_replica_that_no_gateway_admits_waits_for_a_minute_all_the_same():
    harness = Harness()
    harness.hear("g1", service(pod(phase=3, reason="warming")), full=True)
    harness.ticks(MISSING_S + 10, "g1")
    harness.signals.note_ready(KEY, ["p1"])
    harness.ticks(MISSING_S - 1, "g1")
    assert harness.of().endpoints["p1"].lacking
    harness.ticks(2, "g1")
    assert not harness.of().endpoints["p1"].lacking


def test_a_minute_begins_when_a_gateway_no_longer_admits_a_replica_or_it_is_ready_again():
    harness = Harness()
    harness.hear("g1", service(pod()), full=True)
    harness.signals.note_ready(KEY, ["p1"])
    harness.ticks(MISSING_S + 10, "g1")
    harness.hear("g2", service(), full=True)
    assert harness.of().endpoints["p1"].lacking
    harness.ticks(MISSING_S + 1, "g1", "g2")
    assert not harness.of().endpoints["p1"].lacking
    harness.signals.note_ready(KEY, [])
    assert harness.of().endpoints["p1"].lacking
    harness.signals.note_ready(KEY, ["p1"])
    harness.ticks(1, "g1", "g2")
    assert harness.of().endpoints["p1"].lacking


@pytest.mark.parametrize("speaks", [True, False], ids=["it cannot reach the replica", "it is silent itself"])
def test_a_gateway_holds_up_a_replica_for_a_minute_at_most(speaks):
    harness = Harness()
    harness.hear("g1", service(pod()), full=True)
    harness.hear("g2", service(), full=True)
    harness.signals.note_ready(KEY, ["p1"])
    assert harness.of().endpoints["p1"].lacking
    gateways = ("g1", "g2") if speaks else ("g1",)
    harness.ticks(MISSING_S - 1, *gateways)
    assert harness.of().endpoints["p1"].lacking
    woken = len(harness.woken)
    harness.ticks(2, *gateways)
    assert not harness.of().endpoints["p1"].lacking
    assert len(harness.woken) > woken


def test_requests_count_from_the_first_frame_and_after_a_restart():
    harness = Harness()
    harness.hear("g1", service(requests_arrived=100, requests_ended=90), full=True)
    harness.hear("g1", service(requests_arrived=104, requests_ended=93))
    harness.hear("g1", service(requests_arrived=2, requests_ended=1), full=True)
    harness.hear("g1", service(requests_arrived=2, requests_ended=1), service(name="new", requests_arrived=1))
    harness.ticks(BIN_S, "g1")
    (measure,) = harness.of().measures
    assert (measure.arrived, measure.ended) == (6, 4)
    assert harness.signals.of(Key("ns", "new"), UNIX).measures[0].arrived == 1


def test_a_revisions_requests_are_summed_and_its_worst_time_counts():
    harness = Harness()
    for gateway, ttft in (("g1", 100), ("g2", 900)):
        revision = pb.RevisionDemand(revision="r", requests=10, errors=1, ttft_p95_ms=ttft)
        harness.hear(gateway, service(revisions=[revision]), full=True)
    seen = harness.of().revisions["r"]
    assert (seen.requests, seen.errors, seen.ttft_p95_s) == (20, 2, 0.9)


def test_nothing_is_fresh_until_every_gateway_reported_for_at_most_a_minute():
    harness = Harness()
    harness.signals.follow("g1")
    harness.signals.follow("g2")
    harness.hear("g1", service(pod()), full=True)
    assert not harness.of().fresh
    harness.ticks(MISSING_S - 1, "g1")
    assert not harness.of().fresh
    harness.ticks(2, "g1")
    assert harness.of().fresh
    assert not harness.signals.of(KEY, UNIX).missing(["p1"])


def test_a_silent_gateway_makes_all_signals_stale():
    harness = Harness()
    harness.hear("g1", service(pod()), full=True)
    harness.hear("g2", service(pod(verdict=pb.VERDICT_DEAD, reason="stuck"), held=1), full=True)
    harness.ticks(4, "g2")
    assert not harness.of().fresh
    assert harness.of().endpoints["p1"].bad
    harness.signals.forget("g1")
    assert harness.of().fresh


def test_seconds_since_a_gateway_reported_a_replica():
    harness = Harness()
    harness.now += 9
    assert harness.signals.unheard(KEY) == 9, "since the process began"
    harness.now += 1
    assert harness.signals.unheard(KEY) == math.inf, "there is no gateway at all"
    harness.signals.follow("g1")
    assert harness.signals.unheard(KEY) == 10, "there is one"
    harness.hear("g1", service(pod()))
    harness.hear("g2", service())
    harness.ticks(5, "g1")
    assert harness.signals.unheard(KEY) == 0, "a frame without news stands by the last one's"
    harness.ticks(5, "g2")
    assert harness.signals.unheard(KEY) == 5, "one that knows of no replica says nothing of any"
    harness.signals.forget("g1")
    harness.ticks(5, "g2")
    assert harness.signals.unheard(KEY) == 10, "what a gateway said that is gone was said"
    harness.hear("g3", service(pod()))
    harness.now += 4
    harness.hear("g3", full=True)
    assert harness.signals.unheard(KEY) == 4
    harness.hear("g3", service(name="other"), full=True)
    assert harness.signals.unheard(KEY) == 4
    harness.hear("g3", service(pod()))
    assert harness.signals.unheard(KEY) == 0


def test_without_any_gateway_nothing_is_fresh_and_nothing_is_bad():
    harness = Harness()
    assert harness.of() is None
    harness.hear("g1", service(pod()), full=True)
    harness.ticks(10)
    assert (harness.of().fresh, harness.of().endpoints) == (False, {})


def test_a_replica_is_bad_from_the_first_bad_frame_to_the_first_good_one():
    harness = Harness()
    harness.hear("g1", service(pod(verdict=pb.VERDICT_DEAD, reason="silent")), full=True)
    harness.ticks(4, "g1")
    assert harness.of().endpoints["p1"].bad_s == 4
    harness.hear("g1", service(pod()))
    harness.ticks(1, "g1")
    harness.hear("g1", service(pod(verdict=pb.VERDICT_DEAD, reason="silent")))
    assert harness.of().endpoints["p1"].bad_s == 0


def test_a_ready_pod_without_reports_is_missing_then_bad():
    harness = Harness()
    harness.hear("g1", service(pod(), pod("p2", pb.VERDICT_UNSPECIFIED, "unheard", phase=0)), full=True)
    assert harness.of().missing(["p1", "p2", "p3"]) == ("p2", "p3")
    harness.ticks(MISSING_S + 1, "g1")
    assert harness.of().missing(["p1", "p2"]) == ()
    # Clients may reach a replica that the operator does not hear, and no gateway counts their requests.
    assert replace(harness.of(), wakes=False).missing(["p1", "p2"]) == ("p2",)


def test_who_begins_to_lead_without_gateways_has_heard_nobody_yet():
    harness = Harness()
    harness.now += 3_600.0
    assert harness.signals.unheard(KEY) == float("inf")
    harness.signals.begin()
    assert harness.signals.unheard(KEY) == 0.0
    harness.now += 20.0
    assert harness.signals.unheard(KEY) == 20.0


# Who is woken


def test_a_held_request_wakes_its_service_with_its_own_frame_and_more_of_the_same_does_not():
    harness = Harness()
    harness.hear("g1", service(), service(name="other"), full=True)
    harness.ticks(1, "g1")
    harness.woken.clear()
    harness.hear("g1", service(held=1, wake=True, requests_arrived=1))
    assert harness.woken == [KEY]
    for held in range(2, 20):
        harness.hear("g1", service(held=held, wake=True, requests_arrived=held, oldest_held_ms=held))
    assert harness.woken == [KEY]
    harness.hear("g1", service(requests_arrived=20, requests_ended=20))
    assert harness.woken == [KEY, KEY]


def test_load_and_suspicion_wake_no_service():
    harness = Harness()
    harness.hear("g1", service(pod()), full=True)
    harness.ticks(1, "g1")
    harness.woken.clear()
    for running in range(200):
        verdict = pb.VERDICT_SUSPECT if running % 3 else pb.VERDICT_FRESH
        harness.hear("g1", service(pod(verdict=verdict, in_flight=running), running=running, requests_arrived=running))
        harness.ticks(1, "g1")
    assert harness.woken == []


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": pb.VERDICT_DEAD, "reason": "silent"},
        {"verdict": pb.VERDICT_DEAD, "reason": "deep-check", "deep_check_failed": True},
        {"reason": "device-fault", "device_fault": "Xid 79"},
        {"phase": 5},
        {"draining": True, "in_flight": 2},
    ],
)
def test_a_decisive_change_wakes_once(change):
    harness = Harness()
    harness.hear("g1", service(pod()), full=True)
    harness.ticks(1, "g1")
    harness.woken.clear()
    harness.hear("g1", service(pod(**change)))
    harness.hear("g1", service(pod(**change), running=1))
    assert harness.woken == [KEY]


def test_the_end_of_a_drain_wakes():
    harness = Harness()
    harness.hear("g1", service(pod(draining=True, in_flight=2)), full=True)
    harness.ticks(1, "g1")
    harness.woken.clear()
    harness.hear("g1", service(pod(draining=True, in_flight=1)))
    assert harness.woken == []
    harness.hear("g1", service(pod(draining=True)))
    assert harness.woken == [KEY]


def test_a_lasting_verdict_wakes_again_when_it_is_confirmed():
    harness = Harness()
    harness.hear("g1", service(pod(verdict=pb.VERDICT_DEAD, reason="silent")), full=True)
    harness.ticks(1, "g1")
    harness.woken.clear()
    harness.ticks(CONFIRM_S - 2, "g1")
    assert harness.woken == []
    harness.ticks(3, "g1")
    assert harness.woken == [KEY]


def test_a_service_that_no_gateway_knows_any_more_is_forgotten():
    harness = Harness()
    harness.hear("g1", service(), full=True)
    harness.hear("g1", service(name="other"), full=True)
    harness.ticks(BIN_S + 1, "g1")
    assert harness.of() is None


# Bins


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(1, BRIDGED + 1)), min_size=1, max_size=40))
def test_bridged_gaps_keep_the_number_of_requests(steps):
    bins, now = Bins(0.0), 0.0
    for arrived, ended, gap in steps:
        bins.count(arrived, ended)
        now += gap * BIN_S
        bins.close(now, Level())
    measures = bins.measures(0.0)
    assert [measure.at for measure in measures[-KEPT:]] == [now - i * BIN_S for i in range(min(KEPT, round(now / BIN_S)))][::-1]
    if now / BIN_S <= KEPT:
        assert (sum(m.arrived for m in measures), sum(m.ended for m in measures)) == (sum(s[0] for s in steps), sum(s[1] for s in steps))


def test_a_long_gap_begins_a_new_record():
    bins = Bins(0.0)
    bins.close(BIN_S, Level(running=1))
    bins.close(BIN_S * 10, Level(running=2))
    assert [measure.running for measure in bins.measures(0.0)] == [2]
    assert bins.since == BIN_S * 9


def test_the_start_of_a_long_idle_time_is_kept_as_one_measure():
    bins = Bins(0.0)
    for number in range(1, 1_000):
        bins.count(int(number == 3), 0)
        bins.close(number * BIN_S, Level())
    elder, *recent = bins.measures(0.0)
    assert (elder.at, elder.arrived, len(recent)) == (3 * BIN_S, 1, KEPT)


def test_a_service_is_idle_after_a_whole_record_without_requests():
    bins = Bins(0.0)
    for number in range(1, KEPT + 1):
        assert not bins.idle
        bins.close(number * 5.0, Level())
    assert bins.idle
    bins.count(0, 1)  # the last one's end
    bins.close((KEPT + 1) * 5.0, Level())
    assert not bins.idle
    for number in range(KEPT + 2, 2 * KEPT + 2):
        bins.close(number * 5.0, Level())
    assert bins.idle
    bins.close(10_000.0, Level())  # after a silence the record is a new one
    assert not bins.idle


def test_a_waiting_request_ends_idleness_before_the_bin_ends():
    bins = Bins(0.0)
    for number in range(1, KEPT + 1):
        bins.close(number * BIN_S, Level())
    assert bins.idle
    assert bins.amend(Level(held=1))
    assert not bins.idle


def test_the_start_of_an_idle_time_before_the_record_is_known():
    bins = Bins(0.0)
    for number in range(1, 721):
        bins.count(int(number == 3), 0)
        bins.close(number * BIN_S, Level())
    history = History(bins.measures(0.0), (), bins.since)
    reasons = [autoscale(history, Capacity(1), Targets(8), Bounds(0, 4, idle_after_s=idle), 3_600.0).reason for idle in (3_580, 3_590)]
    assert [reason.startswith("No requests for") for reason in reasons] == [True, False]


def test_a_jump_of_the_queue_is_measured_within_a_second():
    harness = Harness()
    harness.hear("g1", service(running=4), full=True)
    harness.ticks(BIN_S, "g1")
    assert harness.measured == [KEY]
    harness.hear("g1", service(running=9, requests_arrived=9))
    harness.ticks(1, "g1")
    assert harness.measured == [KEY], "more run, nobody waits"
    harness.hear("g1", service(running=4, waiting=6, held=1, requests_arrived=12))
    harness.ticks(1, "g1")
    (measure,) = harness.of().measures
    assert (harness.measured, measure.waiting, measure.held, measure.arrived) == ([KEY] * 2, 6, 1, 0)
    harness.ticks(1, "g1")
    assert harness.measured == [KEY] * 2, "no worse than at the last look"
    harness.ticks(2, "g1")
    *_, last = harness.of().measures
    assert (harness.measured, last.waiting, last.arrived, last.at) == ([KEY] * 3, 6, 12, UNIX)


def test_a_filling_kv_cache_is_measured_within_a_second():
    harness = Harness()
    harness.hear("g1", service(running=4, blocks_used=300, blocks_total=1000), full=True)
    harness.ticks(BIN_S, "g1")
    for used, looks in ((690, 1), (710, 2), (750, 2), (770, 3)):
        harness.hear("g1", service(running=4, blocks_used=used, blocks_total=1000))
        harness.signals.tick()
        assert (used, len(harness.measured)) == (used, looks)


def test_no_early_measure_while_a_gateway_is_silent():
    harness = Harness()
    harness.hear("g1", service(running=4), full=True)
    harness.hear("g2", service(running=4), full=True)
    harness.ticks(BIN_S, "g1", "g2")
    harness.ticks(4, "g1")
    before = len(harness.measured)
    harness.hear("g1", service(running=4, waiting=90))
    harness.signals.tick()
    assert len(harness.measured) == before


def test_the_sum_of_held_requests_is_measured_early():
    harness = Harness()
    for gateway in ("g1", "g2"):
        harness.hear(gateway, service(running=4, held=3), full=True)
    harness.ticks(BIN_S, "g1", "g2")
    before = len(harness.measured)
    harness.hear("g1", service(running=4, held=5))  # fewer than the six that both held, and eight in all
    harness.signals.tick()
    assert (len(harness.measured), harness.of().measures[-1].held) == (before + 1, 8)


def test_growth_while_signals_are_missing_is_measured_when_they_return():
    harness = Harness()
    for gateway in ("g1", "g2"):
        harness.hear(gateway, service(running=4), full=True)
    harness.ticks(BIN_S + 1, "g1", "g2")
    before = len(harness.measured)
    harness.now += 3.5
    harness.hear("g1", service(running=4, waiting=90))
    harness.signals.tick()
    assert len(harness.measured) == before
    harness.signals.hear("g2", pb.Demand())  # that nothing is new
    harness.signals.tick()
    assert len(harness.measured) == before + 1
