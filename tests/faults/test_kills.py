"""kill -9 of the operator before, after and between its requests, at points all over a service's life: nothing is made twice, nothing is
lost, and the end is that of an undisturbed life. `make test-ci` draws 100 points, `--all` (make test-full) takes every one.

A failure names its line: `pytest -m sweep tests/faults/test_kills.py --points SCENARIO:N=ACT,N=ACT…` plays it again. Hours are split by
`--all --points SCENARIO --slice K/N`.
"""

import pytest
from fault_plan import AtRequests, EveryWrite, Reaction
from fault_world import SCENARIOS, run, world_of
from kill_points import drawn, every, line_of, nth, points_of, shares, sliced, unplayed
from pacing import recoveries

pytestmark = [pytest.mark.cluster, pytest.mark.sweep, pytest.mark.timeout(3 * 3600)]
SEED, POINTS = 20261121, 100
# Of the points: one may come after the end of a life that was quicker than the undisturbed one.
STRUCK = 0.9
# A tenant's two services under a cap live four times as long: with --all only.
DRAWN = tuple(name for name in SCENARIOS if name != "capped")


def lives(undisturbed, everything, line):
    """Scenario and points of each life to be lived."""
    if ":" in line:
        return [points_of(line)]
    swept = (line,) if line else SCENARIOS if everything else DRAWN
    known = {name: undisturbed(name).requests for name in swept}
    chosen = {
        name: every(known[name]) if everything else drawn(known[name], shares(swept, POINTS)[name], f"{SEED} {name}") for name in swept
    }
    return [(name, points) for name, some in chosen.items() for points in some]


def test_a_killed_operator_goes_on_where_it_stopped(undisturbed, place, proxy, account, request):
    option, failures, struck, spared, found = request.config.getoption, [], 0, [], []

    def failed(line):
        print(line, flush=True)  # hours before the end
        failures.append(line)

    for name, points in sliced(lives(undisturbed, option("--all"), option("--points")), option("--slice")):
        with world_of(place(), proxy, account) as world:
            try:
                outcome = run(name, world, AtRequests({number: Reaction(act) for number, act in points}))
            except AssertionError as error:
                failed(f"--points {line_of(name, points)}\n    {error}")
                continue
        missed = list(unplayed(points, proxy.journal))
        spared += [f"{name}:{line}" for line in missed]
        struck += len(points) - len(missed)
        found += recoveries(proxy.journal)
        print(
            f"{name} of {undisturbed(name).requests} requests: {struck} points, {len(spared)} spared, {len(failures)} failures", flush=True
        )
        if outcome.broken or outcome.rests != undisturbed(name).rests or outcome.deaths > len(points) - len(missed):
            ends = f"it ends otherwise, or by itself ({outcome.deaths} deaths)"
            failed(f"--points {line_of(name, points)}\n    {outcome.broken or ends}")
    report(found)
    print("\n".join(["nobody was killed at", *spared]) if spared else "every point struck", flush=True)
    assert failures == [], "\n".join(failures)
    if not option("--points"):
        assert option("--all") or option("--slice") != "1/1" or struck + len(spared) == POINTS
        assert struck >= STRUCK * (struck + len(spared)), spared


def test_whoever_was_killed_over_a_write_makes_it_in_its_next_life(undisturbed, place, proxy, account):
    """Every fourth write kills, the server never sees it; how many requests later it sees one is judged with the rest."""
    with world_of(place(), proxy, account) as world:
        outcome = run("grown", world, EveryWrite(4, Reaction("kill_before")))
    owed = [found for found in recoveries(proxy.journal) if found.owed]
    report(owed)
    assert len(owed) >= 2
    assert outcome.broken == []
    assert outcome.rests == undisturbed("grown").rests


def report(found):
    """How soon the next life did its first useful write: for people, the count is judged with the rest."""
    seconds, most = [one.seconds for one in found], max((one.requests for one in found if one.owed), default=0)
    print(f"{len(found)} lives that wrote again: p50 {nth(seconds, 0.5):.1f} s, p95 {nth(seconds, 0.95):.1f} s, at most {most} requests")
