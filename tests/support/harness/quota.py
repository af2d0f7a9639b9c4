"""Services, quotas and an operator on a fake API server, for tests of who holds how many devices. Replicas run on CPU and are charged for a
slice by their profile's annotation, so that nothing here depends on where devices are."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pagoda_contracts.names import ANNOTATION_DEVICE_FAULT, ANNOTATION_DEVICES, API_VERSION
from pagoda_operator.api.caps import parse_quota
from pagoda_operator.api.errors import Conflict
from pagoda_operator.api.state import DEPLOYMENTS, PODS, PROFILES, QUOTAS, SERVICES, Json, Key, Resource
from pagoda_operator.quota.keeper import Quotas
from pagoda_operator.quota.status import StatusWriter
from pagoda_operator.quota.usage import QuotaUsages
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.settings import Settings
from pagoda_operator.watch.observe import Ages
from support.harness.stubs import NoDaemons, dependencies_with
from support.kube.fake_api import Body, Crash, FakeApi, finish, new_pod, profile_body, removal_rank, running, service_body

SLICE = "1g.10gb"
LATE_S = 60.0
START = datetime(2026, 1, 1, tzinfo=UTC)


class JitteryApi(FakeApi):
    """Every call takes a random number of turns of the event loop before it happens and after."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)

    async def _turns(self) -> None:
        for _ in range(self._rng.randrange(4)):
            await asyncio.sleep(0)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        await self._turns()
        found = await super().get(resource, namespace, name)
        await self._turns()
        return found

    async def list(self, resource: Resource, namespace: str, selector: str) -> list[Json]:
        await self._turns()
        found = await super().list(resource, namespace, selector)
        await self._turns()
        return found

    async def create(self, resource: Resource, manifest: Json, manager: str) -> None:
        await self._turns()
        await super().create(resource, manifest, manager)
        await self._turns()

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> None:
        await self._turns()
        await super().apply(resource, manifest, manager)
        await self._turns()

    async def apply_status(self, resource: Resource, manifest: Json, manager: str) -> None:
        await self._turns()
        await super().apply_status(resource, manifest, manager)
        await self._turns()

    async def annotate(self, resource: Resource, meta: Json, annotations: Mapping[str, str | None], manager: str) -> Json:
        await self._turns()
        answer = await super().annotate(resource, meta, annotations, manager)
        await self._turns()
        return answer

    async def delete(self, resource: Resource, meta: Json) -> None:
        await self._turns()
        await super().delete(resource, meta)
        await self._turns()


class LateApi(FakeApi):
    """What an operator had on the wire when it died may still happen: kept, until somebody lets it happen or forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.wire: list[tuple[str, Resource, Json]] = []
        self.dies_ordering = False

    async def create(self, resource: Resource, manifest: Json, manager: str) -> None:
        await self._sent("create", resource, manifest, manager)

    async def apply(self, resource: Resource, manifest: Json, manager: str) -> None:
        await self._sent("apply", resource, manifest, manager)

    async def _sent(self, verb: str, resource: Resource, manifest: Json, manager: str) -> None:
        if self.dies_ordering and resource == DEPLOYMENTS:
            self.dies_ordering, self.crash_in = False, 0
        done = len(self.journal)
        try:
            await getattr(super(), verb)(resource, manifest, manager)
        except Crash:
            if len(self.journal) == done:
                self.wire.append((verb, resource, manifest))
            raise

    def arrive(self) -> None:
        """It happens now, where what it was planned on still is."""
        sent, self.wire = self.wire, []
        for verb, resource, manifest in sent:
            with contextlib.suppress(Conflict):
                finish(getattr(super(), verb)(resource, manifest, ""))


class QuotaHarness:
    """`total`: slices that are held or ordered, by the harness's own count."""

    def __init__(self, api: FakeApi | None = None) -> None:
        self.api = api or FakeApi()
        self.api.graceful = True
        template = {"metadata": {"annotations": {ANNOTATION_DEVICES: f"mig-{SLICE}=1"}}}
        self.api.put(PROFILES, profile_body(podTemplate=template))
        self.later = 0.0
        # By how much somebody has set the clock on the wall.
        self.jump = 0.0
        # Slices that the fleet offers as GPUs.
        self.single: frozenset[str] = frozenset()
        self.woken: list[Key] = []
        self._names = 0
        self.daemons: Any = NoDaemons()
        self.settled_at = 0.0
        self.restart()

    def restart(self, *, crashed: bool = False) -> None:
        """A new process, which the one before has told whether all its writes were answered, or has not."""
        if crashed or self.later < self.settled_at:
            self.settled_at = self.later + LATE_S
        self.quotas = Quotas(self.api, self.seen, self.woken.append, lambda: self.later, lambda: self.later >= self.settled_at)
        dependencies = dependencies_with(self.api, quota=self.quotas, daemons=self.daemons, ages=Ages(lambda: self.later))
        self.operator = Reconciler(self.api, Settings(), self.now, dependencies)
        self.usages = QuotaUsages()
        self.status_writer = StatusWriter(self.api, self.quotas, self.now, lambda: self.single, usages=self.usages)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.later + self.jump)

    def seen(self) -> list[Any]:
        """What the watch of quotas shows."""
        return [parse_quota(body) for body in self.api.of(QUOTAS)]

    # People

    def cap(self, count: int, *namespaces: str, name: str = "team", **devices: Any) -> Body:
        spec = {"subjects": {"namespaces": list(namespaces)}, "devices": {"migSlices": [{"profile": SLICE, "count": count}], **devices}}
        self.api.objects.pop(("TenantQuota", "", name), None)
        return self.api.put(QUOTAS, {"apiVersion": API_VERSION, "kind": QUOTAS.kind, "metadata": {"name": name}, "spec": spec})

    def recap(self, count: int, name: str = "team") -> None:
        self.api.edit(QUOTAS, "", name, lambda body: body["spec"].update(devices={"migSlices": [{"profile": SLICE, "count": count}]}))

    def serve(self, namespace: str, replicas: int, **spec: Any) -> Key:
        """Younger than all before it."""
        self._names += 1
        body = service_body(f"s{self._names}", namespace, replicas=replicas, **spec)
        body["metadata"]["creationTimestamp"] = f"2026-01-01T00:{self._names:02}:00Z"
        self.api.put(SERVICES, body)
        return Key(namespace, f"s{self._names}")

    def ask(self, key: Key, replicas: int) -> None:
        self.api.edit(SERVICES, key.namespace, key.name, lambda body: body["spec"].update(replicas=replicas))

    def remove(self, key: Key) -> None:
        del self.api.objects[SERVICES.kind, key.namespace, key.name]
        self.collect()

    def break_device(self, pod: Body) -> None:
        """Somebody who watches devices marks it: the operator is to replace it."""
        self.api.edit(
            PODS, *self._at(pod), lambda body: body["metadata"].setdefault("annotations", {}).update({ANNOTATION_DEVICE_FAULT: "Xid 79"})
        )

    def delete_pod(self, pod: Body) -> None:
        """A person, or an eviction."""
        self.api.edit(PODS, *self._at(pod), lambda body: body["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z"))

    def _at(self, pod: Body) -> tuple[str, str]:
        return pod["metadata"]["namespace"], pod["metadata"]["name"]

    @property
    def staying(self) -> list[Body]:
        return [pod for pod in self.api.of(PODS) if "deletionTimestamp" not in pod["metadata"]]

    # The cluster

    def run(self, key: Key, times: int = 1) -> None:
        for _ in range(times):
            self.outcome = finish(self.operator.reconcile(key))

    def round(self, key: Key, times: int = 1) -> None:
        """Everybody has had a turn."""
        for _ in range(times):
            self.run(key, 2)
            self.control()
            self.end_pods()

    def control(self) -> None:
        """Deployments' controllers: pods are made to match, surplus ones begin to end."""
        for deployment in self.api.of(DEPLOYMENTS):
            mine = sorted((pod for pod in self._alive(deployment) if pod in self.staying), key=removal_rank)
            wanted = deployment["spec"]["replicas"]
            for pod in mine[: max(0, len(mine) - wanted)]:
                self.delete_pod(pod)
            for _ in range(wanted - len(mine)):
                self.api.put(PODS, new_pod(deployment, next(self.api._numbers)))
            ready = {"observedGeneration": deployment["metadata"]["generation"], "replicas": wanted, "availableReplicas": wanted}
            deployment["status"] = ready
            for pod in self._alive(deployment):
                self.api.report(pod, running(ready=True))

    def collect(self) -> None:
        """Garbage collection: a pod without an owner begins to end."""
        alive = {body["metadata"]["uid"] for body in self.api.objects.values()}
        for key, body in list(self.api.objects.items()):
            owners = body["metadata"].get("ownerReferences", [])
            if owners and owners[0]["uid"] not in alive:
                if body["kind"] == PODS.kind:
                    body["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
                else:
                    del self.api.objects[key]
        if any(self._orphans()):
            self.collect()

    def _orphans(self) -> list[Body]:
        alive = {body["metadata"]["uid"] for body in self.api.objects.values()}
        owned = [body for body in self.api.objects.values() if body["metadata"].get("ownerReferences")]
        lost = [body for body in owned if body["metadata"]["ownerReferences"][0]["uid"] not in alive]
        return [body for body in lost if body["kind"] != PODS.kind or "deletionTimestamp" not in body["metadata"]]

    def end_pods(self, most: int = 1000) -> None:
        """Kubelets finish what is ending."""
        going = [key for key, body in self.api.objects.items() if body["kind"] == PODS.kind and "deletionTimestamp" in body["metadata"]]
        for key in going[:most]:
            del self.api.objects[key]

    def _alive(self, deployment: Body) -> list[Body]:
        return [pod for pod in self.api.of(PODS) if pod["metadata"]["ownerReferences"][0]["uid"] == deployment["metadata"]["uid"]]

    def replicas(self, key: Key) -> int:
        """What the service's Deployments want."""
        mine = [body for body in self.api.of(DEPLOYMENTS) if body["metadata"]["ownerReferences"][0]["name"] == key.name]
        return sum(body["spec"]["replicas"] for body in mine)

    @property
    def total(self) -> int:
        deployments = {body["metadata"]["uid"]: body["spec"]["replicas"] for body in self.api.of(DEPLOYMENTS)}
        ending, staying = 0, dict.fromkeys(deployments, 0)
        for pod in self.api.of(PODS):
            owner = pod["metadata"]["ownerReferences"][0]["uid"]
            if "deletionTimestamp" in pod["metadata"] or owner not in staying:
                ending += 1
            else:
                staying[owner] += 1
        return ending + sum(max(deployments[uid], staying[uid]) for uid in deployments)

    def condition(self, key: Key, kind: str = "Ready") -> Body:
        status = self.api.objects[SERVICES.kind, key.namespace, key.name]["status"]
        found: Body = next(condition for condition in status["conditions"] if condition["type"] == kind)
        return found
