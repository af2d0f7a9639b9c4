"""kill -9 of the operator before, after and between its requests, at points all over a service's life: nothing is made twice, nothing is
lost, and the end is that of an undisturbed life. `make test-ci` draws 24 points, `--all` (make test-full) takes every one.

A failure names its line: `pytest -m sweep tests/faults/test_kills.py --points SCENARIO:N=ACT,N=ACT…` plays it again. Hours are split by
`--all --points SCENARIO --slice K/N`.
"""

import statistics

import pytest
from pagoda_operator.api.state import SERVICES
from support.harness.service_life import NAME, SCENARIOS, harness_of, run
from support.judges.pacing import recoveries
from support.kube.fault_plan import AtRequests, EveryWrite, Reaction
from support.kube.kill_points import drawn, every, length, line_of, nth, points_of, shares, sliced, unplayed

pytestmark = [pytest.mark.cluster, pytest.mark.sweep, pytest.mark.timeout(3 * 3600)]
SEED, POINTS = 20261121, 24
# Of the points: one may come after the end of a life that was quicker than the undisturbed one. Those are drawn again, so often at most.
STRUCK = 0.9
TURNS = 4
# A tenant's two services under a cap live four times as long: with --all only.
DRAWN = tuple(name for name in SCENARIOS if name != "capped")


class Sweep:
    """Lives that are lived one after the other, and what became of their points."""

    def __init__(self, undisturbed, place, proxy, account):
        self.undisturbed, self.place, self.proxy, self.account = undisturbed, place, proxy, account
        self.failures, self.spared, self.found, self.struck = [], [], [], 0

    def live(self, name, points):
        """One life; how many requests it had, and at how many of its points nobody was killed. None where it came to no rest."""
        with harness_of(self.place(), self.proxy, self.account, lease=name != "capped") as harness:
            try:
                outcome = run(name, harness, AtRequests({number: Reaction(act) for number, act in points}))
            except AssertionError as error:
                self.failed(f"--points {line_of(name, points)}\n    {error}")
                harness.real.kube.delete(SERVICES, harness.real.namespace, NAME)  # its name would be taken for every later life
                return None
        missed = list(unplayed(points, self.proxy.journal))
        self.spared += [f"{name}:{line}" for line in missed]
        self.struck += len(points) - len(missed)
        self.found += recoveries(self.proxy.journal)
        known = self.undisturbed(name)
        if outcome.broken or outcome.rests != known.rests or outcome.deaths > len(points) - len(missed):
            ends = f"it ends otherwise, or by itself ({outcome.deaths} deaths)"
            self.failed(f"--points {line_of(name, points)}\n    {outcome.broken or ends}")
        print(f"{name}: {self.struck} points, {len(self.spared)} spared, {len(self.failures)} failures", flush=True)
        return length(self.proxy.journal), len(missed)

    def failed(self, line):
        print(line, flush=True)  # hours before the end
        self.failures.append(line)

    def draw(self, name, share):
        """So many points. A life may be over before its last point: what was undisturbed while the machine was slow had polled for longer,
        903 requests once where the killed ones had 500. So in place of what was spared others are drawn, of lives as long as the last."""
        requests, seed, known = self.undisturbed(name).requests, f"{SEED} {name}", set()
        for turn in range(TURNS):
            lives = list(drawn(requests, share, f"{seed} {turn}", known))
            known.update(point for points in lives for point in points)
            ends = [end for points in lives if (end := self.live(name, points)) is not None]
            share = sum(missed for _, missed in ends)
            if not share:
                return
            requests = statistics.median_low([had for had, _ in ends])

    def judge(self):
        report(self.found)
        print("\n".join(["nobody was killed at", *self.spared]) if self.spared else "every point struck", flush=True)
        assert self.failures == [], "\n".join(self.failures)


@pytest.fixture
def sweep(undisturbed, place, proxy, account):
    return Sweep(undisturbed, place, proxy, account)


def test_a_killed_operator_goes_on_where_it_stopped(sweep, undisturbed, request):
    option = request.config.getoption
    line, part = option("--points"), option("--slice")
    swept, least = (line,) if line else SCENARIOS if option("--all") else DRAWN, 0.0
    if ":" in line:
        sweep.live(*points_of(line))
    elif option("--all"):
        whole = [(name, points) for name in swept for points in every(undisturbed(name).requests)]
        for name, points in sliced(whole, part):
            sweep.live(name, points)
        least = STRUCK * (sweep.struck + len(sweep.spared))
    else:
        assert part == "1/1", "--slice goes with --all"
        for name, share in shares(swept, POINTS).items():
            sweep.draw(name, share)
        least = STRUCK * POINTS
    sweep.judge()
    assert sweep.struck >= least, sweep.spared


def test_an_operator_that_was_killed_over_a_write_makes_it_after_its_restart(undisturbed, place, proxy, account):
    """Every fourth write kills, the server never sees it; how many requests later it sees one is judged with the rest."""
    with harness_of(place(), proxy, account) as harness:
        outcome = run("grown", harness, EveryWrite(4, Reaction("kill_before")))
    owed = [found for found in recoveries(proxy.journal) if found.owed]
    report(owed)
    assert len(owed) >= 2
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


def report(found):
    """How soon the next life did its first useful write: for people, the count is judged with the rest."""
    seconds, most = [one.seconds for one in found], max((one.requests for one in found if one.owed), default=0)
    print(f"{len(found)} lives that wrote again: p50 {nth(seconds, 0.5):.1f} s, p95 {nth(seconds, 0.95):.1f} s, at most {most} requests")
