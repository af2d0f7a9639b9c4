"""A third party who edits what the operator made, while it works: when he stops, the service is what it would be without him, nothing was
written for ever, and what must hold held, but for the pods that he himself asked for."""

import time

import pytest
from support.clients.foreign_editor import ForeignEditor
from support.harness.service_life import harness_of, run
from support.kube.fault_plan import Plan

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

# Each edit of an object may cost a write of it, of its status and of what follows from it; a fight would be hundreds.
WRITES_PER_EDIT = 3


@pytest.mark.parametrize(
    ("seed", "edits", "pause"),
    [(1, 30, 0.3), *(pytest.param(seed, 150, 2.0, marks=[pytest.mark.full, pytest.mark.timeout(1800)]) for seed in (2, 3))],
)
def test_foreign_edits_are_undone_in_the_end_and_not_fought_over(seed, edits, pause, undisturbed, place, proxy, account):
    with harness_of(place(), proxy, account) as harness:
        editor, reported = ForeignEditor(harness.real, seed), []

        def foreign_edits():
            # The slower the machine, the more often what he wants to edit is not there again: then he tries more.
            for number in range(10 * edits):
                if number >= edits and done(editor) > edits // 2:
                    break
                reported.append(editor.edit())
                if number == edits // 2:
                    harness.real.edit(replicas=2)
                time.sleep(pause)  # the fault itself: how long he keeps at it

        try:
            outcome = run("grown", harness, Plan(), during=foreign_edits)
        finally:
            print("\n".join(reported))
        writes = len(proxy.writes())
    # His own are the pods that his numbers and images brought or ended, the conditions that tell of them, and a write for each of his.
    ours = [
        line
        for line in outcome.broken
        if not (line.startswith("I2:") and ("pods of" in line or "ordered of" in line)) and not line.startswith(("I6:", "I8:", "I9: Pod"))
    ]
    assert ours == []
    assert [line for line in outcome.broken if line.startswith("I8: Ready with")] == []
    assert outcome.deaths == 0
    assert done(editor) > edits // 2
    assert writes <= WRITES_PER_EDIT * len(reported) + 60
    for here, wanted in zip(outcome.rests, undisturbed("grown").rests, strict=True):
        assert {name: body for name, body in here.items() if body != wanted.get(name)} == {}
        assert here.keys() == wanted.keys()


def done(editor):
    """Edits that the API server took."""
    return sum(editor.done.values()) - editor.done["refused"]
