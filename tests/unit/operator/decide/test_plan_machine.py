"""Random edits, pod fates, vandals, and crashes between any two writes: the operator converges and never takes serving pods down."""

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pagoda_contracts.names import LABEL_ACCELERATOR, LABEL_REVISION
from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import CHILD_RESOURCES, CONFIG_MAPS, CONTROLLER_REVISIONS, DEPLOYMENTS, PODS, PROFILES, SERVICES
from pagoda_operator.decide.render.overlay import merge
from support.clients.hand_edits import EDITS
from support.harness.harness import Harness
from support.kube.fake_api import Crash, crashed, is_ready, running, waiting
from support.suite.profiles import examples

MODELS = st.sampled_from(["pvc://a", "pvc://b", "pvc://c"])
CORES = st.sampled_from(["250m", "1"])
FATES = st.sampled_from([running(ready=True), running(), crashed(), crashed(code=1), waiting("ErrImagePull"), {"phase": "Failed"}])


class Rollouts(RuleBasedStateMachine):
    """The cluster may do anything; the operator may die anywhere."""

    @initialize(replicas=st.integers(0, 2))
    def start(self, replicas: int) -> None:
        self.harness = Harness(replicas=replicas)
        self.images: dict[str, str] = {}
        self.scaling: tuple[str, int] | None = None
        self.aim = self.current()
        self.harness.api.before_write = self.judge

    def judge(self, verb: str, kind: str, name: str) -> None:
        """Before each write of the operator: no deployment with a ready pod goes before the current one can serve."""
        if kind == "Deployment" and verb == "delete":
            assert not self.pods_of(name), f"{name} was deleted with pods"
        if kind == "Deployment" and verb == "apply" and name != self.aim and self.ready_of(name):
            self.scaling = (name, self.serving(without=name))

    def current(self) -> str:
        drafted = self.harness.plan()
        return drafted.current.name if drafted.current else ""

    def pods_of(self, name: str) -> list[dict[str, Any]]:
        live = next(body for body in self.harness.api.of(DEPLOYMENTS) if body["metadata"]["name"] == name)
        return [pod for pod in self.harness.api.of(PODS) if pod["metadata"]["ownerReferences"][0]["uid"] == live["metadata"]["uid"]]

    def ready_of(self, name: str) -> int:
        return sum(map(is_ready, self.pods_of(name)))

    def serving(self, without: str) -> int:
        kept = (body for body in self.harness.api.of(DEPLOYMENTS) if body["metadata"]["name"] != without and body["spec"]["replicas"])
        return sum(self.ready_of(body["metadata"]["name"]) for body in kept)

    @rule(uri=MODELS, cores=CORES, replicas=st.integers(0, 3))
    def edit(self, uri: str, cores: str, replicas: int) -> None:
        self.harness.edit(model={"uri": uri}, accelerators=[{"cpu": {"cores": cores, "memory": "1Gi"}}], replicas=replicas)

    @rule(image=st.sampled_from(["img:1", "img:2"]))
    def upgrade(self, image: str) -> None:
        self.harness.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon=image))

    @rule()
    def calm(self) -> None:
        """Everything comes up: where rollouts start from."""
        self.aim, self.scaling = self.current(), None
        for _ in range(2):  # once to make the pods, once to make them ready
            self.harness.make_ready()

    @rule()
    def control(self) -> None:
        self.harness.api.control()

    @rule(fate=FATES, data=st.data())
    def meet_fate(self, fate: dict[str, Any], data: st.DataObject) -> None:
        if pods := self.harness.api.of(PODS):
            data.draw(st.sampled_from(pods))["status"] = copy.deepcopy(fate)

    @rule(data=st.data())
    def vandalise(self, data: st.DataObject) -> None:
        """Somebody deletes a child that the operator can tell has gone, or scales a Deployment and adds to its pods."""
        live = [body for resource in CHILD_RESOURCES for body in self.harness.api.of(resource)]
        if not live:
            return
        victim = data.draw(st.sampled_from(live))
        meta = victim["metadata"]
        if victim["kind"] == "Deployment":
            patch, _ = EDITS[data.draw(st.sampled_from(list(EDITS)))]
            template = victim["spec"]["template"] | {"spec": merge(victim["spec"]["template"]["spec"], patch)}
            change = {"replicas": 1, "template": template}
            self.harness.api.edit(DEPLOYMENTS, "ns", meta["name"], lambda body: body["spec"].update(change), "vandal")
        elif victim["kind"] != "ConfigMap":  # without both that and its ControllerRevision a revision is lost, and Stalled says so
            del self.harness.api.objects[(victim["kind"], "ns", meta["name"])]

    @rule(crash_in=st.none() | st.integers(0, 12))
    def reconcile(self, crash_in: int | None) -> None:
        before = {body["metadata"]["name"]: self.ready_of(body["metadata"]["name"]) for body in self.harness.api.of(DEPLOYMENTS)}
        self.aim, self.scaling = self.current(), None
        self.harness.api.crash_in = crash_in
        try:
            self.harness.run()
        except (Crash, ClusterError):
            self.harness.restart()
        self.harness.api.crash_in = None
        self.check_scaling(before)

    def check_scaling(self, before: dict[str, int]) -> None:
        replicas = self.harness.api.of(SERVICES)[0]["spec"]["replicas"]
        if self.scaling is None or replicas == 0:
            return
        name, others = self.scaling
        scaled = next((body for body in self.harness.api.of(DEPLOYMENTS) if body["metadata"]["name"] == name), None)
        if scaled is not None and scaled["spec"]["replicas"] == 0 and before[name]:
            assert others, f"{name} served alone and was scaled to zero"

    @invariant()
    def one_deployment_per_revision_and_accelerator(self) -> None:
        labels = [body["metadata"]["labels"] for body in self.harness.api.of(DEPLOYMENTS)]
        pairs = [(found[LABEL_REVISION], found[LABEL_ACCELERATOR]) for found in labels]
        assert len(pairs) == len(set(pairs))

    @invariant()
    def what_runs_is_never_rendered_again(self) -> None:
        for body in self.harness.api.of(DEPLOYMENTS):
            image = body["spec"]["template"]["spec"]["containers"][0]["image"]
            assert self.images.setdefault(body["metadata"]["uid"], image) == image

    def teardown(self) -> None:
        """The cluster calms down: everything becomes ready, and what is left is exactly the current revision."""
        if not hasattr(self, "harness"):
            return
        self.harness.restart()
        for _ in range(4):
            self.harness.make_ready()
        pods = [body["spec"]["template"]["spec"] for body in self.harness.api.of(DEPLOYMENTS)]
        assert [[one["name"] for one in pod["containers"]] for pod in pods] == [["daemon"]] * len(pods)
        assert not any({"hostNetwork", "serviceAccountName"} & pod.keys() for pod in pods)
        drafted = self.harness.plan()
        assert drafted.writes == ()
        assert (
            self.harness.names(DEPLOYMENTS)
            == self.harness.names(CONFIG_MAPS)
            == self.harness.names(CONTROLLER_REVISIONS)
            == [self.current()]
        )
        # Asleep without ever having served is no success.
        served = self.harness.api.of(PODS) or self.harness.conditions()["Serving"]["reason"] != "NotServedYet"
        assert self.harness.conditions()["Ready"]["status"] == ("True" if served else "Unknown")
        assert self.harness.conditions()["Reconciling"]["status"] == "False"
        written = len(self.harness.api.journal)
        self.harness.run()
        assert len(self.harness.api.journal) == written


TestRollouts = Rollouts.TestCase
TestRollouts.pytestmark = [pytest.mark.deep]
TestRollouts.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
