"""Replicas come and go while requests run, daemons fall silent and operators die between any two steps: nobody who serves is removed
before his drain is over, nothing is made while somebody can be turned back, and a quiet cluster reaches its spec."""

from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pagoda_contracts.names import ANNOTATION_DELETION_COST, ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.pods import DaemonState
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from support.harness.fake_daemons import FakeDaemons
from support.harness.harness import KEY, Harness, now
from support.kube.fake_api import Body, Crash, crashed, is_ready
from support.suite.profiles import examples


def deadline(pod: Body) -> int | None:
    found = pod["metadata"].get("annotations", {}).get(ANNOTATION_DRAIN_DEADLINE)
    return int(found) if found is not None else None


class Drains(RuleBasedStateMachine):
    """One service on one revision."""

    @initialize(replicas=st.integers(0, 3), refusing=st.booleans())
    def start(self, replicas: int, refusing: bool) -> None:
        self.harness = Harness(replicas=replicas)
        self.api = self.harness.api
        self.api.graceful = True
        self.daemons = FakeDaemons(self.api)
        self.daemons.refusing = refusing
        self.harness.daemons = self.daemons
        self.harness.restart()
        self.harness.settle()
        self.daemons.probe()
        self.harness.settle()
        self.deadlines: dict[str, int] = {}
        self.excused: set[str] = set()
        self.api.removed = self.judge_removal
        self.api.before_write = self.judge_write

    def now_ms(self) -> float:
        return (now() + self.harness.later).timestamp() * 1000

    def active(self) -> list[Body]:
        return [pod for pod in self.api.of(PODS) if "deletionTimestamp" not in pod["metadata"]]

    def judge_removal(self, pod: Body) -> None:
        """The ReplicaSet takes one: his drain was over, or he did not serve, or was not to be told, when the operator let him go."""
        if pod["metadata"]["uid"] in self.excused or (self.daemons.refusing and deadline(pod) is not None):
            return
        daemon, until = self.daemons.of(pod), deadline(pod)
        assert until is not None, "removed without a drain"
        assert self.now_ms() >= until or (daemon.draining and not daemon.in_flight), f"removed with {daemon} before {until}"

    def judge_write(self, verb: str, kind: str, _name: str) -> None:
        if (verb, kind) != ("apply", "Deployment"):
            return
        self.before = len(self.active()), self.api.of(DEPLOYMENTS)[0]["spec"]["replicas"]

    @rule(replicas=st.integers(0, 4))
    def scale(self, replicas: int) -> None:
        self.harness.edit(replicas=replicas)

    @rule(data=st.data())
    def request_lands(self, data: st.DataObject) -> None:
        if pods := self.daemons.routable():
            self.daemons.of(data.draw(st.sampled_from(pods))).in_flight += 1

    @rule(data=st.data())
    def request_ends(self, data: st.DataObject) -> None:
        if busy := [pod for pod in self.api.of(PODS) if self.daemons.of(pod).in_flight]:
            self.daemons.of(data.draw(st.sampled_from(busy))).in_flight -= 1

    @rule(seconds=st.sampled_from([1, 10, 31]))
    def time_passes(self, seconds: int) -> None:
        self.harness.later += type(self.harness.later)(seconds=seconds)

    @rule(data=st.data())
    def falls_silent_or_answers_again(self, data: st.DataObject) -> None:
        if pods := self.active():
            daemon = self.daemons.of(data.draw(st.sampled_from(pods)))
            daemon.unreachable = not daemon.unreachable

    @rule(data=st.data())
    def crashes(self, data: st.DataObject) -> None:
        """The container: what ran there is gone, and so are its orders."""
        if pods := self.active():
            pod = data.draw(st.sampled_from(pods))
            pod["status"] = crashed(code=1) | {"podIP": "10.0.0.1"}
            daemon = self.daemons.of(pod)
            daemon.draining, daemon.in_flight, daemon.epoch = False, 0, 0

    @rule()
    def kubelets_look(self) -> None:
        self.daemons.probe()

    @rule()
    def control(self) -> None:
        self.api.control()

    @rule()
    def terminating_pods_end(self) -> None:
        self.end_terminating()

    @rule()
    def operator_changes(self) -> None:
        self.daemons.epoch += 1
        self.harness.restart()

    @rule(crash_in=st.none() | st.integers(0, 6))
    def reconcile(self, crash_in: int | None) -> None:
        self.look(crash_in)

    def look(self, crash_in: int | None = None) -> None:
        """The operator's run, to its end or to its death."""
        self.api.crash_in = crash_in
        self.before = (0, 0)
        waiting = [pod["metadata"]["uid"] for pod in self.active() if deadline(pod) and self.reachable(pod) and self.heard(pod)]
        away = {pod["metadata"]["uid"] for pod in self.active() if not is_ready(pod) and self.quiet(pod)}
        asked = self.replicas()
        try:
            self.harness.run()
        except (Crash, ClusterError):
            self.harness.restart()
        self.api.crash_in = None
        if self.replicas() < asked:
            self.excused |= away
        made = self.api.of(DEPLOYMENTS)[0]["spec"]["replicas"] - max(self.before)
        if self.before != (0, 0) and made > 0:
            assert not waiting, "more replicas were asked for while one could be turned back"

    def replicas(self) -> int:
        return sum(body["spec"]["replicas"] for body in self.api.of(DEPLOYMENTS))

    def quiet(self, pod: Body) -> bool:
        """Whether its daemon is beyond any order: never drained, or silent."""
        return deadline(pod) is None or self.daemons.of(pod).unreachable

    def reachable(self, pod: Body) -> bool:
        return not (self.daemons.of(pod).unreachable or self.daemons.refusing) and bool(pod["status"].get("podIP"))

    def heard(self, pod: Body) -> bool:
        """Whether the operator may think so: it knows the answer to its last order, and not that the daemon is back since."""
        return self.daemons.last.get(pod["metadata"]["uid"]) is not DaemonState.SILENT

    @invariant()
    def one_deadline_from_the_first_word(self) -> None:
        if not hasattr(self, "harness"):
            return
        seen = {pod["metadata"]["uid"]: until for pod in self.api.of(PODS) if (until := deadline(pod)) is not None}
        assert all(self.deadlines.get(uid, until) == until for uid, until in seen.items())
        self.deadlines = seen

    def end_terminating(self) -> None:
        for pod in [pod for pod in self.api.of(PODS) if "deletionTimestamp" in pod["metadata"]]:
            del self.api.objects[("Pod", "ns", pod["metadata"]["name"])]

    def teardown(self) -> None:
        """Quiet: daemons answer, requests end, pods come up. Then the spec is reached and stays reached."""
        if not hasattr(self, "harness"):
            return
        for _ in range(12):
            for pod in self.api.of(PODS):
                daemon = self.daemons.of(pod)
                daemon.unreachable, daemon.in_flight = False, 0
            self.daemons.probe()
            self.look()
            self.api.control()
            self.end_terminating()
        self.check_rest()

    def check_rest(self) -> None:
        wanted = self.harness.observed().wanted
        pods: list[Any] = self.active()
        assert len(pods) == wanted == self.api.of(DEPLOYMENTS)[0]["spec"]["replicas"]
        for pod in pods:
            assert not {ANNOTATION_DRAIN_DEADLINE, ANNOTATION_DELETION_COST} & set(pod["metadata"].get("annotations", {}))
            assert not self.daemons.of(pod).draining
        written = len(self.api.journal)
        reported = len(self.daemons.reported)
        self.harness.run()
        assert (len(self.api.journal), len(self.daemons.reported)) == (written, reported), KEY


TestDrains = Drains.TestCase
TestDrains.pytestmark = [pytest.mark.deep]
TestDrains.settings = settings(
    max_examples=examples(40), stateful_step_count=40, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
)
