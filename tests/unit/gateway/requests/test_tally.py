"""What came and ended: sums of the last minute, percentiles within a bucket, and nothing kept of services that are gone."""

import math

from hypothesis import given
from hypothesis import strategies as st
from pagoda_gateway.requests.tally import SLICE_MS, SLICES, Tally, Window

MINUTE_MS = SLICE_MS * SLICES


@given(st.lists(st.tuples(st.integers(0, 4 * MINUTE_MS), st.booleans()), max_size=60).map(sorted))
def test_a_minute_holds_what_ended_within_it_give_or_take_a_slice(events):
    tally = Tally()
    for at, failed in events:
        tally.arrived("s", at)
        tally.ended("s", at, failed=failed)
    now = events[-1][0] if events else 0
    seen = tally.of("s").window.minute(now)
    surely = [failed for at, failed in events if at > now - MINUTE_MS + SLICE_MS]
    perhaps = [failed for at, failed in events if at > now - MINUTE_MS]
    assert len(surely) <= seen.ended <= len(perhaps)
    assert sum(surely) <= seen.failed <= sum(perhaps)
    assert seen.arrived == seen.ended


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=200))
def test_the_95th_percentile_is_ten_percent_exact(times):
    window = Window()
    for time in times:
        window.first_token(time, 0)
    exact = sorted(times)[math.ceil(len(times) * 0.95) - 1]
    assert exact / 1.06 - 1 <= window.minute(0).ttft_p95_ms <= exact * 1.06 + 1


def test_a_client_that_left_is_no_failure_and_no_answer():
    tally = Tally()
    tally.arrived("s", 0)
    tally.ended("s", 10, failed=None)
    assert (tally.of("s").arrived, tally.of("s").ended, tally.of("s").window.minute(10)[1:3]) == (1, 1, (0, 0))


def test_a_revision_is_judged_by_what_its_own_replicas_did():
    tally = Tally()
    tally.tried("s", "old", 0, failed=False)
    tally.tried("s", "new", 0, failed=True)
    tally.first_token("s", "new", 100, 0)
    tally.waited("s", 5_000, 0)
    revisions = {name: window.minute(0) for name, window in tally.of("s").revisions.items()}
    assert (revisions["old"].failed, revisions["new"].failed) == (0, 1)
    assert 90 <= revisions["new"].ttft_p95_ms <= 110
    assert 4_500 <= tally.of("s").window.minute(0).ttft_p95_ms <= 5_500


def test_a_service_that_is_gone_is_forgotten_once_its_last_request_is():
    tally = Tally()
    tally.arrived("gone", 0)
    tally.keep(set())
    assert tally.of("gone").under_way == 1
    tally.ended("gone", 1, failed=False)
    tally.keep(set())
    assert tally.of("gone").arrived == 0
