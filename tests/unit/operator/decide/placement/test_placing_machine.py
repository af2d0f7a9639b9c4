"""Random inventories under random services: at rest nothing is written, a running pod stays, and no change takes a serving pod down."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, SERVICES
from support.harness.fake_scheduler import refuse
from support.harness.harness import Harness
from support.harness.inventories import A100_80, CPU, H100, TINY, cut, gpu, inventory, mig, node, pod, whole
from support.kube.fake_api import is_ready, running, waiting
from support.suite.profiles import examples

BUSY = pod("a", gpu=8)
INVENTORIES = {
    "none": inventory(),
    "h100": inventory(node("a", H100, whole(8))),
    "busy": inventory(node("a", H100, whole(8)), pods=(BUSY,)),
    "cordoned": inventory(node("a", H100, whole(8), cordoned=True)),
    "mixed": inventory(node("a", H100, whole(2), cut(2, p3g_40gb=1, p1g_10gb=2))),
    "slices held": inventory(node("a", H100, whole(2), cut(2, p3g_40gb=1, p1g_10gb=2)), pods=(pod("a", mig_1g_10gb=4),)),
    "both": inventory(node("a", H100, whole(8)), node("b", A100_80, cut(8, p1g_10gb=7), strategy="single"), pods=(BUSY,)),
    "stranded": inventory(node("a", H100, cut(8))),
}
LISTS = [
    [gpu("H100", fallbackAfter="5m"), CPU],
    [gpu("H100")],
    [mig(least="1Gi"), gpu("H100")],
    [mig(least="1Gi", fallbackAfter="1m"), gpu("H100", fallbackAfter="1m"), CPU],
    [CPU, gpu("H100")],
    [CPU | {"fallbackAfter": "2m"}, gpu("H100")],
]


class Placements(RuleBasedStateMachine):
    """The operator may be restarted anywhere; its memory is in the objects."""

    @initialize(entries=st.sampled_from(LISTS), there=st.sampled_from(sorted(INVENTORIES)))
    def start(self, entries: list[Any], there: str) -> None:
        engine = {"maxModelLen": 4096, "maxConcurrency": 8}
        self.harness = Harness(accelerators=entries, model={"uri": TINY}, engine=engine)
        images = {"daemon": "d:1", "fetch": "f:1"}
        self.harness.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(images=images))
        self.harness.inventory = INVENTORIES[there]
        self.harness.api.before_write = self.judge
        self.harness.settle()

    def judge(self, verb: str, kind: str, name: str) -> None:
        if kind == DEPLOYMENTS.kind and verb == "delete":
            live = next(body for body in self.harness.api.of(DEPLOYMENTS) if body["metadata"]["name"] == name)
            mine = [one for one in self.harness.api.of(PODS) if one["metadata"]["ownerReferences"][0]["uid"] == live["metadata"]["uid"]]
            assert not any(map(is_ready, mine)), f"{name} was deleted under ready pods"

    def placement(self) -> dict[str, Any]:
        reported: dict[str, Any] = self.harness.api.of(SERVICES)[0]["status"]["placement"]
        return reported

    def home(self) -> tuple[str, str]:
        reported = self.placement()
        return reported.get("chosen", ""), reported.get("device", "")

    def runs(self) -> bool:
        return any(map(is_ready, self.harness.api.of(PODS)))

    @rule(there=st.sampled_from(sorted(INVENTORIES)))
    def shift(self, there: str) -> None:
        before = self.home() if self.runs() else None
        serving = sum(map(is_ready, self.harness.api.of(PODS)))
        self.harness.inventory = INVENTORIES[there]
        self.harness.settle()
        if before is not None:
            assert (self.home(), sum(map(is_ready, self.harness.api.of(PODS)))) == (before, serving)

    @rule(minutes=st.integers(0, 7))
    def pass_time(self, minutes: int) -> None:
        before = self.home() if self.runs() else None
        self.harness.later += timedelta(minutes=minutes)
        self.harness.settle()
        assert before in (None, self.home())

    @rule(entries=st.sampled_from(LISTS))
    def edit(self, entries: list[Any]) -> None:
        self.harness.edit(accelerators=entries)
        self.harness.settle()

    @rule(replicas=st.integers(0, 2))
    def scale(self, replicas: int) -> None:
        self.harness.edit(replicas=replicas)
        self.harness.settle()

    @rule()
    def serve(self) -> None:
        for _ in range(2):
            for body in self.harness.api.of(PODS):
                body["status"] = running(ready=True)
            self.harness.settle()

    @rule()
    def fail(self) -> None:
        for body in self.harness.api.of(PODS):
            body["status"] = waiting("ErrImagePull")
        self.harness.settle()

    @rule()
    def refuse(self) -> None:
        refuse(self.harness, words="0/3 nodes are available: 3 Insufficient cpu.")

    @invariant()
    def nothing_is_written_at_rest_nor_by_a_new_process(self) -> None:
        if not hasattr(self, "harness"):
            return
        written = len(self.harness.api.journal)
        self.harness.restart()
        self.harness.run()
        self.harness.api.control()
        assert self.harness.api.journal[written:] == []


TestPlacements = pytest.mark.deep(Placements.TestCase)
TestPlacements.settings = settings(max_examples=examples(30), stateful_step_count=10)
