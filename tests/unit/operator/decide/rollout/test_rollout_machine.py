"""Revisions come one after another, good ones, ones that never start, ones that fail requests and ones that are Ready and answer nobody, on
a fleet with or without a spare place; replicas die, operators die. Replicas that answer are not taken away by us, the last one not even
under Replace where a trial can know that the new revision is bad, and a quiet cluster comes to rest where it should."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pagoda_contracts.names import ANNOTATION_DRAIN_DEADLINE, LABEL_REVISION
from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.signals import EndpointSignal, RevisionSignal, Seen, ServiceSignals
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES, Key
from support.harness.fake_daemons import FakeDaemons
from support.harness.harness import Harness
from support.kube.fake_api import Body, Crash, crashed, fetching, is_ready, is_trial, passed, waiting
from support.suite.profiles import examples

CANARY = {"steps": [{"weight": 40, "hold": "20s"}], "abortOn": {"errorRate": "1%"}}
# good and better serve, bad never starts, failing serves errors, mute is Ready to kubelet and answers no gateway; of absent there is no
# model, which a trial finds out, as it does that slow's image takes a minute.
MODELS = st.sampled_from(["good", "better", "bad", "failing", "mute", "absent", "slow"])
WELL, STUCK = EndpointSignal(Seen.FRESH, phase="ready"), EndpointSignal(Seen.DEAD, reason="stuck")


def model_of(body: Body) -> str:
    volumes = body["spec"]["template"]["spec"]["volumes"]
    return str(next(found["persistentVolumeClaim"]["claimName"] for found in volumes if "persistentVolumeClaim" in found))


class FakeSignals:
    """What gateways would count: requests to every revision, errors from the failing one; and what they hear of replicas."""

    def __init__(self) -> None:
        self.errors: Mapping[str, int] = {}
        self.heard: Mapping[str, EndpointSignal] = {}

    def note_ready(self, key: Key, pods: Iterable[str]) -> None:
        """Gateways here admit at once."""

    def unheard(self, _key: Key) -> float:
        return 0.0

    def of(self, _key: Key, _now: float) -> ServiceSignals:
        revisions = {name: RevisionSignal(100, count, 0.1) for name, count in self.errors.items()}
        return ServiceSignals(fresh=True, revisions=revisions, endpoints=self.heard)


class Rollouts(RuleBasedStateMachine):
    """One service, `places` for replicas (None: no bound)."""

    @initialize(
        replicas=st.integers(1, 3),
        strategy=st.sampled_from(["Auto", "Surge", "Replace"]),
        spare=st.none() | st.integers(0, 1),
        canary=st.booleans(),
    )
    def start(self, replicas: int, strategy: str, spare: int | None, canary: bool) -> None:
        self.strategy, self.canary = strategy, canary and strategy != "Replace"
        rollout = {"strategy": strategy} | ({"canary": CANARY} if self.canary else {})
        self.harness = Harness(replicas=replicas, rollout=rollout, model={"uri": "pvc://good"})
        self.api, self.places = self.harness.api, None if spare is None else 3 + spare
        self.api.graceful = True
        self.daemons, self.harness.signals = FakeDaemons(self.api), FakeSignals()
        self.harness.daemons = self.daemons
        self.harness.restart()
        self.dead: set[str] = set()
        self.speaks = {"good", "better", "failing", "slow"}
        self.tried: dict[str, int] = {}
        self.quiet_down(12)

    # The cluster

    def active(self) -> list[Body]:
        return [pod for pod in self.api.of(PODS) if "deletionTimestamp" not in pod["metadata"] and not is_trial(pod)]

    def serving(self) -> int:
        """Ready replicas that answer, and that gateways choose."""
        models = self.models()
        return sum(
            is_ready(pod) and ANNOTATION_DRAIN_DEADLINE not in pod["metadata"].get("annotations", {}) and self.answers(pod, models)
            for pod in self.active()
        )

    def answers(self, pod: Body, models: dict[str, str]) -> bool:
        return models.get(pod["metadata"]["labels"][LABEL_REVISION]) in self.speaks

    def models(self) -> dict[str, str]:
        """By revision."""
        return {body["metadata"]["labels"][LABEL_REVISION]: model_of(body) for body in self.api.of(DEPLOYMENTS)}

    def move(self) -> None:
        """Scheduler and kubelets."""
        models, taken = self.models(), sum("podIP" in pod["status"] for pod in self.api.of(PODS) if not is_trial(pod))
        self.try_out()
        for pod in self.active():
            if "podIP" not in pod["status"] and self.places is not None and taken >= self.places:
                self.put_off(pod)
                continue
            taken += "podIP" not in pod["status"]
            if models.get(pod["metadata"]["labels"][LABEL_REVISION]) in ("bad", "absent") or pod["metadata"]["uid"] in self.dead:
                pod["status"] = crashed() | {"podIP": "10.0.0.1"}
            else:
                self.daemons.bring_up(pod)

    def try_out(self) -> None:
        """What kubelets make of trials: a pod for each look at an image that is slow to pull."""
        for pod in [pod for pod in self.api.of(PODS) if is_trial(pod) and "deletionTimestamp" not in pod["metadata"]]:
            model = pod["spec"]["initContainers"][0]["args"][1].removeprefix("pvc://")
            uid = pod["metadata"]["uid"]
            self.tried[uid] = self.tried.get(uid, 0) + 1
            slow = model == "slow" and self.tried[uid] < 4
            pod["status"] = waiting("ContainerCreating") if slow else fetching(78, "NotFound") if model == "absent" else passed()

    def put_off(self, pod: Body) -> None:
        since = pod["status"].get("conditions", [{}])[0].get("lastTransitionTime") or self.now()
        why = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."}
        pod["status"] = {"phase": "Pending", "conditions": [why | {"lastTransitionTime": since}]}

    def now(self) -> str:
        return (self.harness.operator._clock()).strftime("%Y-%m-%dT%H:%M:%SZ")

    @rule(model=MODELS)
    def edit(self, model: str) -> None:
        self.harness.edit(model={"uri": f"pvc://{model}"})

    @rule(replicas=st.integers(0, 3))
    def scale(self, replicas: int) -> None:
        self.harness.edit(replicas=replicas)

    @rule()
    def kubelets_look(self) -> None:
        self.move()

    @rule()
    def control(self) -> None:
        self.api.control()

    @rule(seconds=st.sampled_from([1, 30, 90]))
    def time_passes(self, seconds: int) -> None:
        self.harness.later += timedelta(seconds=seconds)

    @rule()
    def terminating_pods_end(self) -> None:
        for pod in [pod for pod in self.api.of(PODS) if "deletionTimestamp" in pod["metadata"]]:
            del self.api.objects[("Pod", "ns", pod["metadata"]["name"])]

    @rule(data=st.data())
    def dies(self, data: st.DataObject) -> None:
        """One replica's container, for good: nothing but its removal helps."""
        if pods := self.active():
            self.dead.add(data.draw(st.sampled_from(pods))["metadata"]["uid"])

    @rule(crash_in=st.none() | st.integers(0, 8))
    def reconcile(self, crash_in: int | None) -> None:
        self.look(crash_in)

    @rule(rounds=st.integers(1, 6))
    def a_while(self, rounds: int) -> None:
        """Everything takes its turn."""
        self.quiet_down(rounds)

    # The operator

    def look(self, crash_in: int | None = None) -> None:
        models = self.models()
        failing = {name: 50 if model == "failing" else 0 for name, model in models.items()}
        self.harness.signals.errors = failing  # type: ignore[attr-defined]
        heard = {pod["metadata"]["name"]: WELL if self.answers(pod, models) else STUCK for pod in self.active() if is_ready(pod)}
        self.harness.signals.heard = heard  # type: ignore[attr-defined]
        before, wanted = self.serving(), self.api.of(SERVICES)[0]["spec"]["replicas"]
        self.api.crash_in = crash_in
        try:
            self.harness.run()
        except (Crash, ClusterError):
            self.harness.restart()
        self.api.crash_in = None
        spared = 0 if self.strategy == "Surge" or (self.asks() == "absent" and wanted == 1) else 1
        assert self.serving() >= min(before, wanted - spared), f"{before} served, {self.serving()} after the operator, {wanted} wanted"

    def asks(self) -> str:
        """The model of the spec."""
        return str(self.api.of(SERVICES)[0]["spec"]["model"]["uri"].removeprefix("pvc://"))

    def quiet_down(self, rounds: int, seconds: int = 15) -> None:
        for _ in range(rounds):
            self.look()
            self.api.control()
            self.move()
            self.terminating_pods_end()
            self.harness.later += timedelta(seconds=seconds)

    def teardown(self) -> None:
        """Nobody dies any more, and all answer. The current revision has all replicas, or it was turned back, or it cannot come and an
        older one serves."""
        if not hasattr(self, "harness"):
            return
        self.dead.clear()
        self.speaks.add("mute")
        self.quiet_down(20, seconds=30)
        drafted, service = self.harness.plan(), self.api.of(SERVICES)[0]
        current, wanted = drafted.current.name if drafted.current else "", service["spec"]["replicas"]
        asked = {body["metadata"]["name"]: body["spec"]["replicas"] for body in self.api.of(DEPLOYMENTS)}
        record: dict[str, Any] = service["status"].get("rollout") or {}
        model = self.asks()
        if record.get("phase") == "RolledBack":
            assert (asked.get(current, 0), self.serving()) == (0, wanted)
        elif model not in ("bad", "absent") and not record:
            assert (asked, self.serving()) == ({current: wanted}, wanted)
        else:
            assert model in ("bad", "absent") or self.waits_for_room(), (record, model, asked)
        assert not [pod for pod in self.api.of(PODS) if is_trial(pod)]
        written = len(self.api.journal)
        self.quiet_down(3)
        assert self.api.journal[written:] == []

    def waits_for_room(self) -> bool:
        """A surge on a full fleet, or a canary of a service's only replica: as asked for."""
        return self.places is not None and (self.strategy == "Surge" or self.canary)


@pytest.mark.parametrize(("strategy", "spare", "left"), [("Surge", None, 2), ("Surge", 1, 2), ("Replace", None, 1)])
def test_a_ready_new_revision_that_does_not_answer_replaces_no_replica(strategy, spare, left):
    harness = Rollouts()
    harness.start(replicas=2, strategy=strategy, spare=spare, canary=False)
    harness.edit("mute")
    harness.quiet_down(12)
    (service,) = harness.api.of(SERVICES)
    ready = next(line for line in service["status"]["conditions"] if line["type"] == "Ready")
    assert (harness.serving(), service["status"]["rollout"]["phase"]) == (left, "Progressing")
    assert "is Ready, and it does not answer as it should: stuck" in ready["message"]
    harness.speaks.add("mute")
    harness.quiet_down(12)
    assert list(harness.models().values()) == ["mute"]


class Alone(Rollouts):
    """One replica and one place: here a trial decides about every revision."""

    @initialize(strategy=st.sampled_from(["Auto", "Replace"]))
    def start(self, strategy: str) -> None:  # type: ignore[override]
        super().start(1, strategy, None, False)
        self.places = 1

    @rule(model=st.sampled_from(["absent", "good", "slow"]), rounds=st.integers(0, 6))
    def edit(self, model: str, rounds: int = 0) -> None:
        """And looks at it for a while: edits alone seldom meet one."""
        super().edit(model)
        self.quiet_down(rounds)

    @rule(replicas=st.integers(0, 1))
    def scale(self, replicas: int) -> None:
        super().scale(replicas)


@pytest.mark.deep
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("strategy", ["Replace", "Auto"])
def test_a_service_on_one_device_keeps_serving_if_the_new_model_does_not_exist(strategy, restarted):
    harness = Rollouts()
    harness.start(replicas=1, strategy=strategy, spare=None, canary=False)
    harness.places = 1
    harness.edit("absent")
    for _ in range(12):
        harness.quiet_down(1)
        assert harness.serving() == 1
        if restarted:
            harness.harness.restart()
    assert harness.api.of(SERVICES)[0]["status"]["rollout"]["phase"] == "RolledBack"
    harness.edit("slow")
    harness.quiet_down(25)
    assert list(harness.models().values()) == ["slow"]


PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
TestRollouts, TestAlone = Rollouts.TestCase, Alone.TestCase
TestRollouts.pytestmark = TestAlone.pytestmark = [pytest.mark.deep]
TestRollouts.settings = settings(max_examples=examples(25), stateful_step_count=25, deadline=None, phases=PHASES)
TestAlone.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None, phases=PHASES)
