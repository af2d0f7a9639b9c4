"""A kubelet for the pods of a NodeWithoutKubelet: their containers are real daemon fronts with simulated engines, in the test's own loop
or as the test starts them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pagoda_contracts.launch import Fault, HealthConfig, Listen
from pagoda_contracts.names import LABEL_REVISION
from pagoda_operator.api.state import PODS
from support.kube.client import Body
from support.kube.fake_api import running
from support.kube.namespace import Real
from support.kube.operator_process import NODE
from support.servers.local_front import LocalFront, local_config, local_front
from support.servers.loopback import pod_net

_PERIOD_S = 0.1
# A step that a test holds is no hang.
PATIENT = HealthConfig(progress_timeout="30m")


class Running(Protocol):
    """What a kubelet sees of a container."""

    async def ready(self) -> bool: ...

    def stop(self) -> None:
        """SIGTERM, once."""

    def ended(self) -> bool: ...

    async def close(self) -> None:
        """However it is, nothing stays."""


@dataclass
class InLoop:
    """A front in the test's own loop."""

    front: LocalFront
    stack: AsyncExitStack

    async def ready(self) -> bool:
        return self.front.front.replica.accepting

    def stop(self) -> None:
        self.front.front.stop()

    def ended(self) -> bool:
        return self.front.task.done()

    async def close(self) -> None:
        await self.stack.aclose()


Start = Callable[[Body, str, Path], Awaitable[Running]]


async def in_loop(pod: Body, ip: str, folder: Path, drain_timeout: str = "5m", faults: tuple[Fault, ...] = ()) -> InLoop:
    """Configured by the test, not by the pod's ConfigMap; but it says its revision as there."""
    config = local_config(
        folder, step_ms=5, drain_timeout=drain_timeout, health=PATIENT, revision=pod["metadata"]["labels"][LABEL_REVISION]
    )
    testing = config.testing.model_copy(update={"faults": faults}) if config.testing else None
    own = config.model_copy(update={"listen": Listen(host=ip, probes=0, run_dir=str(folder)), "testing": testing})
    stack = AsyncExitStack()
    return InLoop(await stack.enter_async_context(local_front(own)), stack)


@dataclass
class Container:
    """One pod's; `told` is what its pod's status says of it."""

    ip: str
    running: Running
    reported: bool | None = None
    stopping: bool = False


@dataclass
class FakeKubelet:
    """Containers by pod uid. Each pod gets an address of its own, as ports are fixed."""

    real: Real
    folder: Path
    start: Start = in_loop
    containers: dict[str, Container] = field(default_factory=dict)
    _nets: list[str] = field(default_factory=list)
    _routes: ExitStack = field(default_factory=ExitStack)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for pod in await asyncio.to_thread(self.real.pods):
                await self._look(pod)
            await asyncio.sleep(_PERIOD_S)

    async def _look(self, pod: Body) -> None:
        container = self.containers.get(pod["metadata"]["uid"])
        if "deletionTimestamp" in pod["metadata"]:
            await self._end(pod, container)
        elif container is None:
            if pod["spec"].get("nodeName") == NODE:
                self.containers[pod["metadata"]["uid"]] = await self._start(pod)
        elif container.reported != (ready := await container.running.ready()):
            status = running(ready=ready) | {"podIP": container.ip, "podIPs": [{"ip": container.ip}]}
            await asyncio.to_thread(self.real.node.report, pod, status)
            container.reported = ready

    async def _start(self, pod: Body) -> Container:
        number = next(self._numbers)
        if number % 250 == 1:
            self._nets.append(self._routes.enter_context(pod_net()))
        ip, folder = f"{self._nets[-1]}.{1 + number % 250}", self.folder / str(number)
        folder.mkdir()
        return Container(ip, await self.start(pod, ip, folder))

    async def _end(self, pod: Body, container: Container | None) -> None:
        """SIGTERM, and the pod's end once the process has left."""
        if container is not None:
            if not container.stopping:  # a second signal ends the process, which is the test's own
                container.stopping = True
                container.running.stop()
            if not container.running.ended():
                return
        await asyncio.to_thread(self.real.kube.delete, PODS, self.real.namespace, pod["metadata"]["name"], grace=0)

    async def close(self) -> None:
        for container in self.containers.values():
            await container.running.close()
        self._routes.close()


@asynccontextmanager
async def fake_kubelet(real: Real, folder: Path, start: Start = in_loop) -> AsyncIterator[FakeKubelet]:
    kubelet = FakeKubelet(real, folder, start)
    loop = asyncio.create_task(kubelet.run())
    try:
        yield kubelet
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await kubelet.close()
