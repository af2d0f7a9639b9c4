"""The loop of all fake nodes: follows nodes and pods, asks the pure half what to do about each that changed or is due, and does it."""

import asyncio
from datetime import UTC, datetime
from typing import TypeVar

import httpx
import structlog

from pagoda_devcluster.client.watching import CONFLICT, AsyncApi, Event, insist
from pagoda_devcluster.cluster.errors import ApiError
from pagoda_devcluster.fake import nodes, plays, pods
from pagoda_devcluster.fake.fronts import Fronts
from pagoda_devcluster.fake.nodes import FakeNode
from pagoda_devcluster.fake.plays import Object
from pagoda_devcluster.gpus import dra
from pagoda_devcluster.gpus.layout import Layout

WORKERS = 8
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 0.5
Key = tuple[str, str]
K = TypeVar("K")
log = structlog.get_logger()


class Queue:
    """Keys to look at, each once, and never the same in two hands."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}

    def touch(self, key: Key) -> None:
        if key in self._busy:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._queue.put_nowait(key)

    async def take(self) -> Key:
        key = await self._queue.get()
        self._waiting.discard(key)
        self._busy.add(key)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        return key

    def done(self, key: Key, wake: float | None) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.touch(key)
        elif wake is not None:
            self._timers[key] = asyncio.get_running_loop().call_later(wake, self.touch, key)


class Addresses:
    """Which pod has which of its node's addresses."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[int, Key]] = {}

    def of(self, node: FakeNode, key: Key, known: str) -> str:
        """The one the pod's status has, after a start of this process; else the lowest that is free."""
        taken = self._addresses.setdefault(node.name, {})
        number = next((number for number, holder in taken.items() if holder == key), None)
        if number is None:
            number = node.number_of(known)
        if number is None:
            number = next(number for number in range(len(taken) + 1) if number not in taken)
        taken[number] = key
        return node.pod_address(number)

    def free(self, key: Key) -> None:
        for taken in self._addresses.values():
            for number in [number for number, holder in taken.items() if holder == key]:
                del taken[number]


class FakeKubelets:
    """All of them in one process: 100 nodes cost one list and two watches."""

    def __init__(self, api: AsyncApi, fakes: list[FakeNode], layout: Layout, version: str, fronts: Fronts | None = None) -> None:
        self._api, self._layout, self._version, self._fronts = api, layout, version, fronts
        self._fakes = {node.name: node for node in fakes}
        self._nodes: dict[str, Object] = {}
        self._pods: dict[Key, Object] = {}
        self._addresses = Addresses()
        self._queue = Queue()
        self._listed = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())
            await self._register()
            if fronts := self._fronts:
                await insist(lambda: fronts.look(self._touch_fronts))
                group.create_task(self._follow_fronts(fronts))
            group.create_task(self._follow_nodes())
            group.create_task(self._follow_pods())

    async def _register(self) -> None:
        """Nodes that were deleted stay so: only a start makes them."""
        turn = asyncio.Semaphore(WORKERS)

        async def one(node: FakeNode) -> None:
            async with turn:
                await insist(lambda: self._api.apply(f"/api/v1/nodes/{node.name}", nodes.node_object(node)))

        await asyncio.gather(*(one(node) for node in self._fakes.values()))
        log.info("registered", nodes=len(self._fakes))

    async def _follow_nodes(self) -> None:
        async for event in self._api.follow("/api/v1/nodes", labelSelector=nodes.SELECTOR):
            for found in event.objects:
                self._see_node(event, found)

    def _see_node(self, event: Event, found: Object) -> None:
        name = found["metadata"]["name"]
        if event.kind == "DELETED":
            self._nodes.pop(name, None)
            return
        before = self._nodes.get(name)
        if newer(found, before):
            self._nodes[name] = found
        self._queue.touch(("", name))
        if before is None or before["metadata"].get("annotations") != found["metadata"].get("annotations"):
            for key, pod in self._pods.items():
                if pod["spec"]["nodeName"] == name:
                    self._queue.touch(key)

    async def _follow_pods(self) -> None:
        async for event in self._api.follow("/api/v1/pods", fieldSelector="spec.nodeName!="):
            listed = {key_of(found): found for found in event.objects}
            if event.kind == "LISTED":
                self._forget(set(self._pods) - set(listed))
            if event.kind == "DELETED":
                self._forget(set(listed))
                continue
            for key, found in listed.items():
                if newer(found, self._pods.get(key)):
                    self._pods[key] = found
                    self._queue.touch(key)
            self._listed = True

    async def _follow_fronts(self, fronts: Fronts) -> None:
        """Readiness is theirs to say, and so is when a deleted pod has drained. One question for all of them, where kubelets would
        probe each once a second."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await fronts.look(self._touch_fronts)
                if self._listed:
                    await fronts.keep({pod["metadata"]["uid"] for pod in self._pods.values()})
            except httpx.HTTPError as error:
                log.warning("fronts_silent", error=str(error) or type(error).__name__)

    def _touch_fronts(self, uids: set[str]) -> None:
        for key, pod in self._pods.items():
            if pod["metadata"]["uid"] in uids:
                self._queue.touch(key)

    def _forget(self, keys: set[Key]) -> None:
        for key in keys:
            self._pods.pop(key, None)
            self._addresses.free(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.take()
            wake: float | None = AGAIN_SECONDS
            try:
                wake = await (self._tend_pod(key) if key[0] else self._tend_node(key[1]))
            except (ApiError, httpx.HTTPError) as error:
                if not (isinstance(error, ApiError) and error.code == CONFLICT):
                    log.warning("write_failed", key="/".join(key), error=str(error) or type(error).__name__)
            finally:
                self._queue.done(key, wake)

    async def _tend_node(self, name: str) -> float | None:
        node, found = self._fakes.get(name), self._nodes.get(name)
        if node is None or found is None:
            return None
        if status := nodes.status_change(node, found, self._version, now()):
            answer = await self._api.merge(f"/api/v1/nodes/{name}/status", {"status": status})
            keep(self._nodes, name, answer)
            await self._publish(node, found)
        return None

    async def _publish(self, node: FakeNode, found: Object) -> None:
        """Owned by the node, so that it goes with it."""
        if placed := dra.resource_slice(node.played, node.name, found["metadata"]["uid"]):
            await self._api.apply(*placed)

    async def _tend_pod(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        node = self._fakes.get(pod["spec"]["nodeName"]) if pod else None
        if pod is None or node is None:
            return None
        context = self._context(key, pod, node)
        if self._fronts:
            context = await self._fronts.tend(pod, context, now())
        verdict = pods.decide(pod, context, now())
        path = f"/api/v1/namespaces/{key[0]}/pods/{key[1]}"
        if verdict.delete:
            await self._api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})
        elif verdict.status:
            # The uid refuses a pod of the same name that came after the one decided about.
            body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": verdict.status}
            keep(self._pods, key, await self._api.merge(f"{path}/status", body))
        return verdict.wake

    def _context(self, key: Key, pod: Object, node: FakeNode) -> plays.PodContext:
        found = self._nodes.get(node.name, {"metadata": {}})
        addresses = (self._address(key, pod, node), node.address)
        return plays.pod_context(pod, found, plays.drawn(self._layout.seed, pod, self._layout.ready_seconds), addresses)

    def _address(self, key: Key, pod: Object, node: FakeNode) -> str:
        """A pod that has ended gives its own back, as it gives back its place: Jobs that are not removed would use up the node's 253."""
        known: str = pod.get("status", {}).get("podIP", "")
        if pods.has_ended(pod):
            self._addresses.free(key)
            return known
        return node.address if pod["spec"].get("hostNetwork") else self._addresses.of(node, key, known)


def keep(cache: dict[K, Object], key: K, answer: Object | None) -> None:
    """The answer is newer than what the watch has sent so far; deciding again from the older one would write twice. What the watch reported
    to be gone meanwhile stays gone: no event would say so again, and its front and its address would be kept for ever."""
    if answer and key in cache and newer(answer, cache[key]):
        cache[key] = answer


def key_of(pod: Object) -> Key:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


def newer(found: Object, before: Object | None) -> bool:
    return before is None or int(found["metadata"]["resourceVersion"]) >= int(before["metadata"]["resourceVersion"])


def now() -> datetime:
    return datetime.now(UTC)
