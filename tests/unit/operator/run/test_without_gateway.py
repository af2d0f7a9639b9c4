"""Without a gateway: what replicas report of themselves scales a service and lets a canary pass, and clients call replicas with keys."""

import asyncio
import hashlib
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import DAEMON_CONFIG_KEY, LABEL_REVISION
from pagoda_contracts.pb.daemon_pb2 import Phase, State
from pagoda_daemon.api.access import watched
from pagoda_operator.api.callers import Callers
from pagoda_operator.api.state import CONFIG_MAPS, DEPLOYMENTS, PODS, SERVICES
from pagoda_operator.client.replicas import Replicas
from pagoda_operator.client.signals import Signals
from pagoda_operator.run.scaler import Scaler
from pagoda_operator.run.settings import Settings
from support.harness.harness import KEY, Harness
from support.harness.scaled import ScaledHarness
from support.harness.stubs import dependencies_with
from support.kube.fake_api import crashed, is_ready, running
from support.kube.issuer import Issuer
from support.servers.local_front import NAME, local_config, local_front

QUICK = {"scaleDown": {"stabilizationWindowSeconds": 20}}


class Heard(Replicas):
    """Frames come from the test; test_replicas.py has the streams."""

    async def _read(self, replica):
        """No stream."""

    def take(self, reports, now):
        for service in self._services.values():
            for replica in service.replicas.values():
                if (state := reports(replica.pod)) is not None:
                    replica.hear(State.FromString(state.SerializeToString()), now)


def well(_pod):
    return State(phase=Phase.PHASE_READY)


class Alone(ScaledHarness):
    """The operator's runs, joined as serve/process.py joins them without gateways. `reports`: a pod's own frame of each second, or None."""

    def __init__(self, **spec):
        self.reports = well
        super().__init__(**spec)
        self.settle()
        self.serve()

    def restart(self):
        self.woken, self.due = True, None
        self.signals = Signals(self.steady, self.wake, self.measured, wakes=False)
        self.reader = Heard(self.signals, self.steady, "test")
        self.signals.begin()
        self.scaler = Scaler(self.api, self.signals, self.steady, self.wall)
        Harness.restart(self)

    def dependencies(self):
        return dependencies_with(self.api, signals=self.signals, scaling=self.scaler, replicas=self.reader)

    def wake(self, _key):
        self.woken = True

    def measured(self, key):
        self.woken = self.woken or self.scaler.demand_changed(key, idle=self.signals.idle(key))

    def run(self, key=KEY):
        outcome = super().run(key)
        self.woken, self.due = False, None if outcome.again is None else self.steady() + outcome.again
        return outcome

    def serve(self):
        """As a kubelet: with an address each."""
        for number, pod in enumerate(self.api.of(PODS)):
            if not is_ready(pod) and pod["status"].get("phase") != "Running":
                self.api.report(pod, running(ready=True) | {"podIP": f"10.0.0.{number}"})
        self.settle()

    def flow(self, seconds, *, serve=True):
        """Time passes, second by second; the operator runs when it is woken, or when it wanted to."""
        for _ in range(int(seconds)):
            self.later += timedelta(seconds=1)
            self.reader.take(self.reports, self.steady())
            self.signals.hear("replicas", self.reader.report())
            self.signals.tick()
            if self.woken or (self.due is not None and self.steady() >= self.due):
                self.settle()
            if serve and not all(map(is_ready, self.api.of(PODS))):
                self.serve()

    def sides(self):
        """Replicas by revision."""
        return {body["metadata"]["labels"][LABEL_REVISION]: body["spec"]["replicas"] for body in self.api.of(DEPLOYMENTS)}


# Scaling


@pytest.mark.parametrize(("rate", "load"), [(0.2, {"running": 1, "waiting": 400}), (2, {"running": 4})], ids=["a queue", "requests"])
def test_load_that_replicas_report_scales_up_and_down_to_the_last_one(rate, load):
    scaling = {"mode": "Auto", "min": 0, "max": 3, "idleAfter": "10s", "targets": {"queueDepth": 1}, "behavior": QUICK}
    here = Alone(scaling=scaling, engine={"maxConcurrency": 4})
    here.flow(20)
    assert here.wanted() == 1, "idle, and no request would start one again"
    before = here.steady()

    def busy(_pod):
        count = int(rate * (here.steady() - before))
        return State(phase=Phase.PHASE_READY, requests_admitted=count, requests_ended=count, **load)

    here.reports = busy
    here.flow(30)
    assert here.wanted() == 3
    assert here.reported()["lastDecisions"][0]["from"] == 1
    here.reports = well
    here.flow(60)
    assert here.wanted() == 1
    assert here.api.of(SERVICES)[0]["spec"]["replicas"] == 1
    assert [line for line in here.writes(kind=SERVICES.kind) if line[0] != "status"] == []


def test_while_no_replica_is_heard_nothing_is_taken_away():
    here = Alone(scaling={"mode": "Auto", "min": 1, "max": 3, "behavior": QUICK}, replicas=3)
    here.reports = lambda _pod: None
    here.flow(50)
    assert here.wanted() == 3
    here.reports = well
    here.flow(50)
    assert here.wanted() == 1


# A canary


class Canary(Alone):
    """Half of the replicas are new."""

    def __init__(self):
        steps = [{"weight": 50, "hold": "30s"}]
        super().__init__(replicas=2, rollout={"canary": {"steps": steps, "abortOn": {"errorRate": "10%"}}})
        self.flow(5)
        assert self.reason() == "Available"
        ((self.old, _),) = self.sides().items()
        self.edit(engine={"maxModelLen": 128})
        self.settle()
        (self.new,) = self.sides().keys() - {self.old}

    def of_new(self, pod):
        return pod.revision == self.new


def test_a_canary_whose_replicas_are_well_goes_on_by_time():
    here = Canary()
    here.flow(25)
    assert (here.reason(), here.sides()) == ("Canary", {here.old: 2, here.new: 1})
    said = here.conditions()["Ready"]["message"]
    assert "without a gateway, requests are neither counted nor divided" in said
    assert "the next step begins" in said
    here.flow(15)
    assert (here.reason(), here.sides()) == ("Available", {here.new: 2})


def test_a_canary_whose_replica_ends_is_rolled_back():
    here = Canary()
    here.flow(10)
    (pod,) = [one for one in here.api.of(PODS) if one["metadata"]["labels"][LABEL_REVISION] == here.new]
    here.api.report(pod, crashed())
    here.settle()
    assert here.conditions()["Stalled"]["reason"] == "RolledBack"
    here.flow(40)
    assert (here.reason(), here.sides()[here.old], here.sides()[here.new]) == ("RolledBack", 2, 0)


@pytest.mark.parametrize("fault", [{"deep_check_failed": True}, {"step_age_ms": 90_000}, None], ids=["wrong", "stuck", "unheard"])
def test_a_canary_whose_replica_does_not_answer_right_waits_beside_the_old_ones(fault):
    here = Canary()
    report = None if fault is None else State(phase=Phase.PHASE_READY, **fault)
    here.reports = lambda pod: report if here.of_new(pod) else well(pod)
    here.flow(50)
    assert here.sides()[here.old] == 2
    assert "is Ready, and" in here.conditions()["Ready"]["message"]
    here.reports = well
    here.flow(50)
    assert (here.reason(), here.sides()) == ("Available", {here.new: 2})


# Clients' keys


def digests(**keys):
    return "".join(f"{hashlib.sha256(key.encode()).hexdigest()} {name}\n" for name, key in keys.items())


class Mounted:
    """A Secret as the kubelet mounts it: a change swaps one link."""

    def __init__(self, folder: Path):
        self.folder, self.count = folder, 0
        folder.mkdir()

    def put(self, entries: dict[str, str]):
        self.count += 1
        data, link = self.folder / f"..{self.count}", self.folder / "..data_tmp"
        data.mkdir()
        for path, text in entries.items():
            (data / path).write_text(text)
        link.symlink_to(data.name)
        link.rename(self.folder / "..data")
        for path in entries:
            if not (self.folder / path).is_symlink():
                (self.folder / path).symlink_to(f"..data/{path}")


class Keyed(Harness):
    settings = Settings(callers=Callers(gateway="pagoda/pagoda-gateway", operator="pagoda/pagoda-operator", clients=True))

    def made(self):
        """The DaemonConfig, and the pod's volumes and mounts by name."""
        self.settle()
        (deployment,), (config,) = self.api.of(DEPLOYMENTS), self.api.of(CONFIG_MAPS)
        pod = deployment["spec"]["template"]["spec"]
        mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        return DaemonConfig.model_validate_json(config["data"][DAEMON_CONFIG_KEY]), {one["name"]: one for one in pod["volumes"]}, mounts


async def test_a_replica_answers_a_client_whose_key_is_in_the_secret_and_reads_a_change_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(watched, "_LOOK_EVERY_S", 0.0)
    made, volumes, mounts = await asyncio.to_thread(Keyed(clientKeys={"name": "llama-keys"}).made)
    secret = Mounted(tmp_path / "mounted")
    (item,) = volumes["client-keys"]["secret"]["items"]
    secret.put({item["path"]: digests(proxy="first")})
    # Where the replica looks is where the Secret is mounted; here that is elsewhere.
    file = str(secret.folder / Path(made.auth.keys_file).relative_to(mounts["client-keys"]))
    auth = made.auth.model_copy(update={"keys_file": file, "tokens": Issuer(tmp_path).config().tokens})
    async with local_front(local_config(tmp_path, auth=auth)) as front, httpx.AsyncClient(base_url=f"http://{front.http}") as client:

        async def ask(key):
            body = {"model": NAME, "prompt": "x", "max_tokens": 2}
            return (await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"} if key else {})).status_code

        assert [await ask(key) for key in ("first", "second", "")] == [200, 401, 401]
        secret.put({item["path"]: digests(proxy="second")})
        assert [await ask(key) for key in ("first", "second", "")] == [401, 200, 401]
