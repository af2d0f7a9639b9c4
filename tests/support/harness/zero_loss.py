"""Planned events under open-loop load: a real API server, operator and two gateways behind a balancer. Replicas are daemon fronts with
simulated engines in the test's own loop. zero_loss_events.py has the events, bench/zero_loss.py plays them at full size.

A stream is lost if its client sees an error, and wrong if it differs from its undisturbed run in one token. No client retries.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from pagoda_contracts.launch import DaemonConfig, Listen
from pagoda_contracts.names import GRPC_SET_STATE, LABEL_REVISION, PORT_DAEMON_HTTP, ROLE_OPERATOR
from pagoda_daemon.api.access.caller import ROLE_ANYBODY
from pagoda_daemon.api.access.roles import METHODS
from pagoda_daemon.api.grpc.watch import StateFeed
from pagoda_daemon.simulated.device.worker import SimulatedWorker, simulated_limits
from support.clients.streams import Load, Stream, open_loop, together
from support.judges.status_truth import is_ready
from support.kube.client import Body, Kube
from support.kube.cluster import running_cluster
from support.kube.fake_kubelet import PATIENT, Container, FakeKubelet, InLoop, fake_kubelet
from support.kube.namespace import Real
from support.kube.operator_process import NodeWithoutKubelet, OperatorProcess, install_role, kubeconfig
from support.kube.operator_under_test import under_test
from support.servers.balancer import Balancer, balancing
from support.servers.gateway_process import GatewayProcess, start_gateway
from support.servers.local_front import NAME, local_config, local_front

REPLICAS = 4
PATIENCE_S = 900


class Row(NamedTuple):
    """One event: `hit` of the streams were under way where it struck."""

    event: str
    load: str
    times: int
    requests: int
    hit: int
    lost: int
    wrong: int


class Engines:
    """What all simulated engines share: `step_s`, those that stand still (by pod IP), and which gateways hear no new replica."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.still: dict[str, threading.Event] = {}
        self.deaf: set[str] = set()
        self.hear = asyncio.Event()

    def worker(self, config: DaemonConfig) -> SimulatedWorker:
        """In the place of SimulatedWorker.of."""

        def pause(seconds: float) -> None:
            if (gate := self.still.get(config.listen.host)) is not None:
                gate.wait()
            time.sleep(seconds)

        return SimulatedWorker(simulated_limits(config), self.step_s * 1000, pause)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """All replicas of this process have them, and obey an operator that shows no token."""
        frames = StateFeed.frames

        async def late(feed: StateFeed, caller: Any, request: Any, context: Any) -> AsyncIterator[Any]:
            while request.watcher in self.deaf and not self.hear.is_set():
                await self.hear.wait()
            async for state in frames(feed, caller, request, context):
                yield state

        roles = {GRPC_SET_STATE: frozenset((ROLE_ANYBODY, ROLE_OPERATOR))}
        with patch.object(SimulatedWorker, "of", self.worker), patch.object(StateFeed, "frames", late), patch.dict(METHODS, roles):
            yield


@dataclass
class HeldBack(InLoop):
    """Ready when the test lets it be."""

    may_be_ready: Callable[[], bool] = lambda: True

    async def ready(self) -> bool:
        return await super().ready() and self.may_be_ready()


@dataclass
class Place:
    """The cluster while a load runs. `waits`: pods that are not reported Ready; `stands_still`: new replicas compute nothing."""

    real: Real
    balancer: Balancer
    engines: Engines
    load: Load
    processes: ExitStack
    gateways: list[GatewayProcess] = field(default_factory=list)
    waits: Callable[[Body], bool] = lambda _pod: False
    stands_still: bool = False
    kubelet: FakeKubelet | None = None
    undisturbed: dict[str, Stream] = field(default_factory=dict)
    marks: list[tuple[float, set[str]]] = field(default_factory=list)
    _edits: int = 0
    _gateways: int = 0

    def add_gateway(self) -> None:
        """A gateway as installed, but for its lame duck, which ends at a second SIGTERM."""
        options = ("--identity", f"g{self._gateways}", "--lame-duck", "10m", "--hold-timeout", "10m")
        self._gateways += 1
        made = self.processes.enter_context(start_gateway("--kubeconfig", str(self.real.cluster.kubeconfig), *options))
        self.gateways.append(made)
        self.balancer.backends.append(made.http)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.balancer.port}/v1"

    async def start(self, pod: Body, ip: str, folder: Path) -> HeldBack:
        """A container of the pod."""
        config = local_config(
            folder,
            engine={"max_concurrency": 256, "kv_bytes": 1 << 26},
            drain_timeout="30m",
            health=PATIENT,
            revision=pod["metadata"]["labels"][LABEL_REVISION],
        )
        own = config.model_copy(update={"listen": Listen(host=ip, probes=0, run_dir=str(folder))})
        stack = AsyncExitStack()
        front = await stack.enter_async_context(local_front(own))
        if self.stands_still:
            self.engines.still[ip] = threading.Event()
        return HeldBack(front, stack, lambda: not self.waits(pod))

    async def prepare(self) -> None:
        """Four replicas serve, every gateway sends them requests, and each answer is known."""
        await self.until(self.settled, "four replicas")
        streams = await together(self.url, NAME, self.load.questions, self.load.tokens)
        self.undisturbed = {stream.question: stream for stream in streams}
        assert not [one.error for one in self.undisturbed.values() if one.error]

    async def play(self, event: str, strike: Callable[[], Awaitable[int]]) -> Row:
        """One event under load. `strike` returns how often it struck, and notes in `marks` when and where."""
        self.marks, times = [], []

        async def struck() -> None:
            times.append(await strike())

        streams = await open_loop(self.url, NAME, self.load, struck)
        hit = sum(any(one.in_flight_at(at) and _was_at(one, where) for at, where in self.marks) for one in streams)
        lost = [one for one in streams if one.error]
        wrong = [one for one in streams if not one.error and one.said != self.undisturbed[one.question].said]
        for one in lost[:5]:
            print(event, one.error, one.route)
        return Row(event, f"{self.load.most} streams", sum(times), len(streams), hit, len(lost), len(wrong))

    def mark(self, where: set[str]) -> None:
        """The event strikes now, at these endpoints."""
        self.marks.append((time.monotonic(), where))

    def staying(self) -> list[Body]:
        return [pod for pod in self.real.pods() if "deletionTimestamp" not in pod["metadata"]]

    def container(self, pod: Body) -> Container | None:
        return self.kubelet.containers.get(pod["metadata"]["uid"]) if self.kubelet else None

    def endpoints(self, pods: list[Body]) -> set[str]:
        return {f"{container.ip}:{PORT_DAEMON_HTTP}" for pod in pods if (container := self.container(pod)) is not None}

    def settled(self) -> bool:
        """The newest revision alone serves, with all replicas."""
        pods, service = self.real.pods(), self.real.service()
        status = service.get("status", {})
        ready = next((one for one in status.get("conditions", []) if one["type"] == "Ready"), {})
        reported = status.get("observedGeneration") == service["metadata"]["generation"] and ready.get("reason") == "Available"
        return reported and len(pods) == REPLICAS and len({revision(pod) for pod in pods}) == 1 and all(map(is_ready, pods))

    async def edit(self, back: int = 0) -> set[str]:
        """Asks for another revision, or for one of before; returns the names of the pods of now."""
        pods = await asyncio.to_thread(self.staying)
        self._edits += 1
        self.mark(self.endpoints(pods))
        await asyncio.to_thread(self.real.edit, engine={"maxModelLen": 512 + self._edits - back * 2})
        return names(pods)

    async def until(self, look: Callable[[], Any], what: str) -> Any:
        """Looks three times a second, off the loop."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := await asyncio.to_thread(look)):
                await asyncio.sleep(0.3)
        assert found, what
        return found


def names(pods: list[Body]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def revision(pod: Body) -> str:
    return str(pod["metadata"]["labels"][LABEL_REVISION])


def _was_at(stream: Stream, where: set[str]) -> bool:
    """Whether it was at one of these endpoints; one that was asked elsewhere again was."""
    return stream.route is not None and (stream.route.endpoint in where or stream.route.attempt > 1)


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[Real, Path]]:
    """A control plane without kubelets, a namespace, and the operator's kubeconfig."""
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(nodes="control-plane"))
        install_role(cluster)
        kube = Kube(cluster.kubeconfig)
        stack.callback(kube.close)
        node = NodeWithoutKubelet(kube)
        node.register()
        stack.callback(node.leave)
        real = Real(cluster, kube, node, f"zero-{secrets.token_hex(4)}")
        real.prepare()
        yield real, kubeconfig(kube, folder)


@asynccontextmanager
async def zero_loss(real: Real, account: Path, folder: Path, load: Load, step_s: float) -> AsyncIterator[Place]:
    """The cluster, prepared."""
    engines = Engines(step_s)
    async with AsyncExitStack() as stack:
        stack.enter_context(engines.installed())
        place = Place(real, await stack.enter_async_context(balancing()), engines, load, stack.enter_context(ExitStack()))
        for _ in range(2):
            await asyncio.to_thread(place.add_gateway)
        model = {"uri": "pvc://models", "servedNames": [NAME]}
        await asyncio.to_thread(real.apply, replicas=REPLICAS, model=model, drain={"timeout": "30m"}, health={"progressTimeout": "30m"})
        demand = ",".join(f"127.0.0.1:{one.demand}" for one in place.gateways)
        # On a busy machine four replicas start within minutes, and no gateway may be given up meanwhile.
        patient = under_test(missing_s=PATIENCE_S)
        operator = await asyncio.to_thread(OperatorProcess, account, "--gateways", demand, program=patient)
        stack.callback(operator.stop)
        place.kubelet = await stack.enter_async_context(fake_kubelet(real, folder, place.start))
        await place.prepare()
        yield place
        assert operator.events("reconcile_bug") == []
