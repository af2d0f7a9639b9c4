"""Under Replace the last old replica that serves goes once a pod without devices has shown the new revision's image and model."""

import copy
from dataclasses import replace
from datetime import timedelta

import pytest
from pagoda_contracts.names import (
    ANNOTATION_DEVICES,
    ANNOTATION_DRAIN_DEADLINE,
    ANNOTATION_ONLY_RUNS,
    CONTAINER_DAEMON,
    CONTAINER_FETCH,
    LABEL_COMPONENT,
    LABEL_REVISION,
    LABEL_SERVICE_UID,
)
from pagoda_contracts.resources.status import RolloutStatus
from pagoda_contracts.resources.traffic import RolloutSpec
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.errors import ClusterError, Denied, Refused
from pagoda_operator.api.state import CONTROLLER_REVISIONS, DEPLOYMENTS, NETWORK_POLICIES, PODS, PROFILES, SERVICES
from pagoda_operator.decide.render.children import Owner, inspection_policy, inspector_uid
from pagoda_operator.decide.render.trial_pod import trial_pod
from pagoda_operator.decide.replicas.replicas import RevisionState
from pagoda_operator.decide.rollout.counts import RolloutState
from pagoda_operator.decide.rollout.rollout import decide
from pagoda_operator.decide.rollout.trial import PATIENCE_S, Trial
from pagoda_operator.run.settings import Settings
from support.harness.harness import Harness
from support.harness.placing import SMALL_CONFIG, inspected
from support.kube.fake_api import crashed, fetching, is_ready, is_trial, passed, running, scheduled, waiting

NOW = 1_800_000_000.0
HUB = {"uri": "hf://acme/tiny", "revision": "v1", "credential": "hub"}
SECRETS = [{"name": "hub", "secretRef": {"name": "hub-token"}}]
PULLS = waiting("ContainerCreating")
NO_NODE = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: too many pods"}]}
BACK_OFF = waiting("ImagePullBackOff", 'Back-off pulling image "daemon:2": not found')


# Decided by


def revision(name, count=0, up=0, **words):
    return RevisionState(
        name, f"hash-{name}", **{"replicas": count, "pods": count, "up": up, "ready": up, "placed": count, "proven": up > 0} | words
    )


def record(strategy="Replace", phase="Progressing", **words):
    return RolloutStatus(revision="hash-new", replaces="hash-old", strategy=strategy, phase=phase, **words)


OLD, NEW, NONE = revision("old", 1, 1), revision("new"), Trial()
HERE = Trial(there=True, placed=True, progress="it runs")


def decided(trial=NONE, new=NEW, old=OLD, wanted=1, elapsed=None, **words):
    """What is decided of one replica under Replace."""
    before = words.pop("record", None) or record(**words)
    return decide(RolloutState(RolloutSpec(strategy=before.strategy), wanted, new, (old,), before, now=NOW, trial=trial, elapsed=elapsed))


def targets(reported):
    return reported.targets["new"], reported.targets["old"]


@pytest.mark.parametrize(
    ("tried", "old", "phase"),
    [
        (Trial(), 1, "Progressing"),
        (HERE, 1, "Progressing"),
        (HERE._replace(placed=False), 1, "Progressing"),
        (HERE._replace(failed="no such image"), 1, "RolledBack"),
        (HERE._replace(passed=True), 0, "Progressing"),
    ],
)
def test_the_last_one_goes_when_a_trial_has_passed_and_not_before(tried, old, phase):
    reported = decided(tried)
    assert (targets(reported), reported.tries, reported.record.phase) == ((0, old), True, phase)


def test_a_failed_trial_is_the_reason_of_the_rollback():
    reported = decided(HERE._replace(failed="x: not found"), since="2026-01-01T00:00:00Z")
    assert (reported.record.reason, reported.record.since) == ("The trial of the new revision failed: x: not found", None)


# Of whom it is asked: the new side, the old side, how many are wanted, words of the record.
NO_TRIAL = {
    "a surge": {"strategy": "Surge"},
    "one that has served before": {"new": revision("new", proven=True)},
    "nobody serves": {"old": revision("old", 1, 0, proven=True)},
    "nothing is wanted": {"wanted": 0},
    "two are wanted, and the first new one shows it": {"wanted": 2, "old": revision("old", 2, 2)},
    "the new one serves": {"new": revision("new", 1, 1), "old": OLD},
    "turned back": {"phase": "RolledBack", "reason": "x"},
}


@pytest.mark.parametrize("case", NO_TRIAL)
def test_there_is_no_trial_if_no_last_replica_is_at_stake(case):
    reported = decided(**NO_TRIAL[case])
    assert (reported.tries, "trial" in reported.waits) == (False, False)


@pytest.mark.parametrize("old", [revision("old", 1, 0, proven=True), revision("old", 1, 0, pods=0, proven=True)])
def test_a_hiccup_of_the_old_one_does_not_end_a_trial_that_is_under_way(old):
    assert targets(decided(HERE, old=old)) == (0, 1)
    assert targets(decided(HERE, old=replace(old, broken=1))) == (0, 0)
    assert targets(decided(Trial(), old=old)) == (0, 0)


def test_a_trial_that_has_passed_stays_until_the_old_one_is_gone():
    """It is the memory: an operator that begins anew goes on with the drain."""
    reported = decided(HERE._replace(passed=True), old=revision("old", 1, 0, proven=True))
    assert (reported.tries, targets(reported)) == (True, (0, 0))
    assert not decided(HERE._replace(passed=True), old=revision("old", proven=True)).tries


def test_a_trial_without_a_place_is_waited_for_two_minutes():
    waits = decided(Trial(progress="the trial pod is being created"))
    assert (waits.record.since, waits.waits) == (
        "2027-01-15T08:00:00Z",
        "the old replica stays until the trial of the new revision has passed: the trial pod is being created",
    )
    begun = waits.record
    assert decided(record=begun, elapsed=100.0).again == PATIENCE_S - 100
    over = decided(record=begun, elapsed=PATIENCE_S)
    assert (targets(over), over.tries, over.record.since) == ((0, 0), False, begun.since)
    over = decided(HERE._replace(placed=False), record=begun, elapsed=PATIENCE_S)
    assert (targets(over), over.tries) == ((0, 0), False)
    # The drain that has begun goes on, and the next one has its own two minutes.
    draining = decided(Trial(), record=begun, elapsed=PATIENCE_S + 1, old=revision("old", 1, 0, proven=True))
    assert (targets(draining), draining.record.since) == ((0, 0), None)


def test_a_trial_with_a_place_is_waited_for_without_limit():
    reported = decided(HERE, since="2026-01-01T00:00:00Z", elapsed=80_000.0)
    assert (targets(reported), reported.tries, reported.record.since) == ((0, 1), True, None)


# On a cluster


def harness(tried=None, model=None, **spec):
    """A service of one replica that serves; `tried`: what becomes of each trial's pod."""
    made = Harness(rollout={"strategy": "Replace"}, **({"model": model} if model else {}), **spec)
    made.begin(f"{model} {spec}", lambda: (model and inspected(made, SMALL_CONFIG), made.settle(), made.make_ready()))
    made.old = replicas(made)[0]["metadata"]["uid"]
    if tried is not None:
        made.api.trial = lambda _: tried
    return made


def replicas(made):
    return [pod for pod in made.api.of(PODS) if not is_trial(pod)]


def trials(made):
    return [pod for pod in made.api.of(PODS) if is_trial(pod)]


def rollout(made):
    return made.api.of(SERVICES)[0]["status"].get("rollout") or {}


def untouched(made):
    (pod,) = replicas(made)
    return pod["metadata"]["uid"] == made.old and is_ready(pod) and ANNOTATION_DRAIN_DEADLINE not in pod["metadata"].get("annotations", {})


def roll(made, **spec):
    made.edit(**spec or {"engine": {"maxModelLen": 128}})
    made.settle()


AGAIN = crashed(1, "boom")
AGAIN["containerStatuses"][0]["restartCount"] = 2
BAD = {
    "no such image": (BACK_OFF, "not found"),
    "a name that is none": (waiting("InvalidImageName", "couldn't parse"), "couldn't parse"),
    "a configuration that it cannot read": (crashed(message="ConfigRejected: /etc/pagoda/daemon.json: later"), "ConfigRejected"),
    "a program that ends again and again": (AGAIN, "boom"),
    "a model that nobody has": (fetching(78, "NotFound: acme/tiny"), "NotFound: acme/tiny"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("restarted", [False, True])
def test_what_cannot_come_up_turns_the_rollout_back_and_the_old_replica_is_never_touched(case, restarted):
    status, why = BAD[case]
    made = harness(status)
    made.edit(engine={"maxModelLen": 128})
    for _ in range(8):
        made.run()
        assert untouched(made)
        made.api.control()
        if restarted:
            made.restart()
    assert (made.reason(), rollout(made)["phase"]) == ("RolledBack", "RolledBack")
    reported = made.conditions()["Stalled"]["message"]
    assert why in reported
    assert reported.endswith("1 ready replica of an older revision continues to serve")
    assert (trials(made), len(made.api.of(DEPLOYMENTS))) == ([], 1)
    written = len(made.api.journal)
    made.settle()
    assert (made.api.journal[written:], untouched(made)) == ([], True)
    # What it was turned back from is tried anew when it is asked for anew, and goes.
    roll(made, engine={})
    assert made.reason() == "Available"
    made.api.trial = lambda _: passed()
    roll(made)
    made.make_ready()
    assert (made.reason(), replicas(made)[0]["metadata"]["uid"] != made.old, trials(made)) == ("Available", True, [])


SLOW = {
    "pulls its image": (PULLS, "pulls its image and reads the model's config.json"),
    "was once not pulled": (waiting("ErrImagePull", "connection reset"), "connection reset"),
    "asks a hub that is away": (fetching(1, "Unreachable: 503"), "Unreachable: 503"),
    "ended once": (crashed(1, "boom"), "boom"),
}


@pytest.mark.parametrize("case", SLOW)
def test_what_only_takes_long_is_waited_for_and_said(case):
    status, reported = SLOW[case]
    made = harness(status)
    roll(made)
    for hours in (1, 23):
        made.later = timedelta(hours=hours)
        made.settle()
        assert (untouched(made), made.reason()) == (True, "RollingOut")
    message = made.conditions()["Ready"]["message"]
    assert message.startswith("0 of 1 replicas ready: the old replica stays until the trial of the new revision has passed: tiny-")
    assert reported in message
    trials(made)[0]["status"] = passed()
    made.settle()
    assert made.old not in [pod["metadata"]["uid"] for pod in replicas(made)]


def test_a_registry_with_transient_errors_has_ten_minutes():
    made = harness(waiting("ImagePullBackOff", "toomanyrequests: you have reached your pull rate limit"))
    roll(made)
    made.later += timedelta(minutes=9)
    made.settle()
    assert (untouched(made), rollout(made)["phase"]) == (True, "Progressing")
    made.later += timedelta(minutes=2)
    made.settle()
    assert (untouched(made), rollout(made)["phase"], "toomanyrequests" in rollout(made)["reason"]) == (True, "RolledBack", True)


def test_a_trial_that_ends_while_the_old_replica_is_not_ready_loses_no_replica():
    made = harness(PULLS)
    roll(made)
    made.api.graceful = True
    for pod in trials(made):
        made.api.remove(pod)
    replicas(made)[0]["status"] = running(ready=False)
    for _ in range(4):
        made.run()
        made.api.control()
    assert [pod["metadata"]["uid"] for pod in replicas(made)] == [made.old]


def test_the_end_of_a_trial_is_not_waited_for():
    made = harness(passed())
    made.api.graceful = True
    roll(made)
    for _ in range(6):
        made.run()
        made.api.control()
    assert "-trial-" not in made.conditions()["Reconciling"]["message"] or made.reason() != "Waiting"


OOM = crashed(137, "")
OOM["containerStatuses"][0]["restartCount"] = 5
CACHED = {"uri": "hf://acme/tiny", "cache": {"pvc": "models"}}


@pytest.mark.parametrize(
    ("status", "model", "goes_on"),
    [
        (OOM, None, True),
        (fetching(137, ""), CACHED | {"cache": None}, True),
        (fetching(1, "no route to host"), CACHED, True),
        (fetching(1, "no route to host"), CACHED | {"cache": None}, False),
    ],
)
def test_an_inconclusive_trial_rolls_nothing_back(status, model, goes_on):
    made = harness(status, model=model)
    roll(made)
    for _ in range(4):
        made.later += timedelta(minutes=5)
        made.settle()
    assert rollout(made)["phase"] == "Progressing"
    assert (not untouched(made) if replicas(made) else True) is goes_on


def test_of_a_program_that_may_need_what_a_trial_lacks_it_is_enough_that_it_runs():
    bare = {"spec": {"containers": [{"name": "daemon", "args": []}]}, "metadata": {}}
    filled = {"spec": {**bare["spec"], "initContainers": [{"name": "fill"}]}, "metadata": {}}
    assert ANNOTATION_ONLY_RUNS not in made_of(bare)["metadata"]["annotations"]
    assert made_of(filled)["metadata"]["annotations"][ANNOTATION_ONLY_RUNS] == "true"


def test_how_a_program_is_run_is_part_of_what_is_tried():
    pinned = copy.deepcopy(TEMPLATE)
    pinned["spec"] |= {"hostNetwork": True}
    pinned["spec"]["containers"][0] |= {"workingDir": "/opt"}
    spec = made_of(pinned)["spec"]
    assert (spec["hostNetwork"], spec["containers"][0]["workingDir"]) == (True, "/opt")


def test_the_time_of_a_canary_step_does_not_count_for_a_trial():
    reported = decided(record=record(step=0, since="1970-01-01T00:00:00Z"))
    assert (targets(reported), reported.tries, reported.record.step) == ((0, 1), True, None)
    assert reported.record.since != "1970-01-01T00:00:00Z"


def test_a_trial_that_comes_to_no_end_within_a_day_has_failed():
    made = harness(PULLS)
    roll(made)
    made.later = timedelta(hours=24, seconds=1)
    made.settle()
    assert (made.reason(), untouched(made)) == ("RolledBack", True)
    assert "has not finished within a day" in rollout(made)["reason"]


def test_a_key_that_is_not_there_has_ten_minutes_as_with_a_replica():
    made = harness(waiting("CreateContainerConfigError", 'secret "hub" not found'))
    roll(made)
    assert (made.run().again, rollout(made)["phase"]) == (600.0, "Progressing")
    made.later = timedelta(seconds=600)
    made.settle()
    assert (rollout(made)["phase"], untouched(made)) == ("RolledBack", True)


@pytest.mark.parametrize("status", [NO_NODE, {"phase": "Failed", "conditions": scheduled(False), "reason": "Evicted"}])
def test_a_trial_without_a_place_delays_a_rollout_only_shortly(status):
    made = harness(status)
    roll(made)
    assert (untouched(made), len(trials(made))) == (True, 1)
    made.later = timedelta(seconds=PATIENCE_S - 1)
    made.settle()
    assert untouched(made)
    made.later = timedelta(seconds=PATIENCE_S)
    made.settle()
    assert (trials(made), [pod["metadata"]["uid"] == made.old for pod in replicas(made)]) == ([], [False])
    made.make_ready()
    assert (made.reason(), rollout(made)) == ("Available", {})


@pytest.mark.parametrize("error", [Denied("403: exceeded quota: native"), Refused("422: admission webhook")])
def test_a_refused_trial_delays_a_rollout_only_shortly(error):
    made = harness()

    def refuse(verb, kind, name):
        if (verb, kind) == ("create", "Pod"):
            raise error

    made.api.before_write = refuse
    made.edit(engine={"maxModelLen": 128})

    def looks():
        for _ in range(6):
            try:
                outcome = made.run()
            except ClusterError:
                made.restart()
            else:
                assert not made.conditions()["Ready"]["message"].startswith("422") or 0 < outcome.again <= PATIENCE_S
            made.api.control()

    looks()
    assert untouched(made)
    assert str(error) in made.conditions()["Ready"]["message"]
    made.later = timedelta(seconds=PATIENCE_S)
    looks()
    assert [pod["metadata"]["uid"] == made.old for pod in replicas(made)] == [False]


def test_a_trial_that_somebody_deletes_is_made_again_however_late():
    made = harness(PULLS)
    roll(made)
    (before,) = trials(made)
    made.later = timedelta(hours=2)
    made.settle()
    del made.api.objects[("Pod", "ns", before["metadata"]["name"])]
    made.settle()
    (after,) = trials(made)
    assert (after["metadata"]["uid"] != before["metadata"]["uid"], untouched(made)) == (True, True)


def test_another_image_is_another_trial_and_the_one_before_goes():
    made = harness(BACK_OFF)
    made.api.trial = lambda pod: BACK_OFF if pod["spec"]["containers"][0]["image"].endswith(":1") else PULLS
    made.edit(engine={"maxModelLen": 128})
    made.run()
    made.run()
    assert len(trials(made)) == 1
    made.api.edit(PROFILES, "", "default", lambda body: body["spec"]["images"].update(daemon="localhost/daemon:2"))
    made.settle()
    assert [pod["spec"]["containers"][0]["image"] for pod in trials(made)] == ["localhost/daemon:2"]


def test_a_spec_that_goes_back_ends_the_trial():
    made = harness(PULLS)
    roll(made)
    roll(made, engine={})
    assert (trials(made), untouched(made), made.reason(), rollout(made)) == ([], True, "Available", {})


def test_a_surge_that_found_no_place_is_tried_before_it_replaces():
    """Auto on a full fleet: the new replica waits for a device beside the old one, and its image is bad."""
    made = harness(BACK_OFF)
    made.edit(rollout={"strategy": "Auto"}, engine={"maxModelLen": 128})
    short = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."}
    for _ in range(12):
        made.run()
        made.api.control()
        for pod in replicas(made):
            if pod["metadata"]["uid"] != made.old:
                pod["status"] = {"phase": "Pending", "conditions": [short | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        made.later += timedelta(seconds=15)
    assert (rollout(made)["strategy"], rollout(made)["phase"], untouched(made)) == ("Replace", "RolledBack", True)


# What it is made of


def pod_of(made):
    (pod,) = trials(made)
    return pod


def test_it_runs_the_image_for_its_version_and_reads_the_model_and_asks_for_no_device():
    made = harness(PULLS, model=HUB, credentials=SECRETS)
    replicas(made)[0]["spec"] = {"nodeName": "node-1"}
    roll(made)
    spec = pod_of(made)["spec"]
    (daemon,), (fetch,) = spec["containers"], spec["initContainers"]
    assert (daemon["name"], daemon["image"], daemon["args"][-1]) == (CONTAINER_DAEMON, "localhost/daemon:1", "--version")
    assert daemon["args"][:2] == ["--config", "/etc/pagoda/daemon.json"]
    assert (fetch["name"], fetch["image"]) == (CONTAINER_FETCH, "localhost/fetch:1")
    assert fetch["args"] == ["inspect", "hf://acme/tiny", "--revision", "v1", "--credential", "hub"]
    assert [mount["mountPath"] for mount in fetch["volumeMounts"]] == ["/etc/pagoda-credentials/hub"]
    assert not any("Probe" in word or word in ("restartPolicy", "ports") for one in (daemon, fetch) for word in one)
    assert {name for one in (daemon, fetch) for name in one["resources"]["requests"]} == {"cpu", "memory"}
    (near,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert near["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]
    assert {volume["name"] for volume in spec["volumes"]} == {"config", "run", "tmp", "credential-0"}


def test_a_claim_is_looked_into_where_the_profile_has_an_image_for_it():
    made = harness(PULLS)
    roll(made, model={"uri": "pvc://models/other"})
    spec = pod_of(made)["spec"]
    (fetch,) = spec["initContainers"]
    assert fetch["args"] == ["inspect", "pvc://models/other"]
    assert fetch["volumeMounts"] == [{"name": "source", "mountPath": "/claims/models", "readOnly": True}]
    assert {"name": "source", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}} in spec["volumes"]
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in (fetch, *spec["containers"]))


def test_it_is_no_replica_and_leaves_the_inspection_alone():
    made = harness(PULLS)
    roll(made)
    labels, meta = pod_of(made)["metadata"]["labels"], made.observed().meta
    assert (labels[LABEL_SERVICE_UID], labels[LABEL_COMPONENT], LABEL_REVISION in labels) == (inspector_uid(meta.uid), "trial", False)
    assert ANNOTATION_DEVICES not in pod_of(made)["metadata"]["annotations"]
    assert [pod.uid for pod in made.observed().pods] == [made.old]
    assert pod_of(made)["metadata"]["ownerReferences"][0]["uid"] == meta.uid
    policy = inspection_policy(Owner("ns", "tiny", meta.uid), ())["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= labels.items()


def test_it_is_fenced_in_before_it_is_made_and_the_fence_goes_with_it():
    made = harness(PULLS)
    callers = Callers(gateway="pagoda/gateway", operator="pagoda/operator", network_policy=True)
    made.operator._settings = Settings(callers=callers)
    roll(made)
    made_in_order = [(kind, name) for verb, kind, name in made.api.journal if verb == "create" and kind in ("Pod", "NetworkPolicy")]
    assert made_in_order[-1][0] == "Pod"
    assert made_in_order[-2] == ("NetworkPolicy", "tiny.inspect")
    trials(made)[0]["status"] = passed()
    made.settle()
    made.make_ready()
    assert made.names(NETWORK_POLICIES) == ["tiny"]


TEMPLATE = {
    "spec": {
        "runtimeClassName": "nvidia",
        "tolerations": [{"key": "gpu"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []},
        },
        "resourceClaims": [{"name": "devices", "resourceClaimTemplateName": "r"}],
        "volumes": [
            {"name": "ca", "configMap": {"name": "ca"}},
            {"name": "model", "emptyDir": {}},
            {"name": "scratch", "ephemeral": {}},
        ],
        "containers": [
            {
                "name": "daemon",
                "image": "d",
                "args": ["--config", "f"],
                "env": [{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "devices"}]},
                "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("ca", "model", "scratch")],
            }
        ],
    },
    "metadata": {"annotations": {ANNOTATION_DEVICES: "gpu=1", "mesh/inject": "false"}},
}


def made_of(template, node=""):
    return trial_pod(Owner("ns", "tiny", "uid"), "tiny-1", {"podTemplate": template}, "hf://a/b", node)


def test_a_trial_has_what_may_fail_in_a_replica_and_no_devices():
    made = made_of(TEMPLATE, "node-1")
    spec, (daemon,) = made["spec"], made["spec"]["containers"]
    assert daemon["env"] == [{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert (daemon["volumeMounts"], spec["volumes"]) == ([{"name": "ca", "mountPath": "/ca"}], TEMPLATE["spec"]["volumes"][:1])
    assert ("claims" in daemon["resources"], "resourceClaims" in spec, "initContainers" in spec) == (False, False, False)
    assert (spec["runtimeClassName"], spec["tolerations"]) == ("nvidia", [{"key": "gpu"}])
    assert ("podAntiAffinity" in spec["affinity"], len(spec["affinity"]["nodeAffinity"])) == (False, 1)
    assert made["metadata"]["annotations"].items() >= {"mesh/inject": "false"}.items()
    assert ANNOTATION_DEVICES not in made["metadata"]["annotations"]


def test_a_program_on_a_claim_is_tried_on_the_node_of_the_old_replica():
    pinned = copy.deepcopy(TEMPLATE)
    pinned["spec"]["volumes"][0] = {"name": "ca", "persistentVolumeClaim": {"claimName": "deps"}}
    spec = made_of(pinned, "node-1")["spec"]
    assert spec["volumes"] == pinned["spec"]["volumes"][:1]
    own = {"key": "metadata.name", "operator": "In", "values": ["node-1"]}
    nodes = spec["affinity"]["nodeAffinity"]
    (before,) = TEMPLATE["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert nodes == {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [before | {"matchFields": [own]}]}}


def test_where_the_old_one_runs_is_not_part_of_what_is_tried():
    here, there = made_of(TEMPLATE, "a"), made_of(TEMPLATE, "b")
    assert here["metadata"]["name"] == there["metadata"]["name"]


def test_a_command_of_the_profile_s_own_need_only_run():
    template = {"spec": {"containers": [{"name": "daemon", "command": ["wrap"]}]}}
    for status, over in (
        (running(), True),
        (crashed(1, "what is --version"), True),
        (crashed(127, "no such program"), False),
        (PULLS, False),
    ):
        made = harness(status)
        made.api.edit(PROFILES, "", "default", lambda body: body["spec"].update(podTemplate=template))
        roll(made)
        assert (made.old not in [pod["metadata"]["uid"] for pod in replicas(made)]) is over


def test_it_is_of_what_the_revision_is_pinned_to():
    made = harness(PULLS)
    roll(made)
    kept = {body["metadata"]["name"]: body["data"]["podTemplate"]["spec"] for body in made.api.of(CONTROLLER_REVISIONS)}
    name = pod_of(made)["metadata"]["name"].rpartition("-trial-")[0]
    assert pod_of(made)["spec"]["containers"][0]["image"] == kept[name]["containers"][0]["image"]
