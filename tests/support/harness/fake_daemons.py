"""Replicas' daemons in memory, one per pod of a FakeApi: orders, epochs and requests in flight, as the real front has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_contracts.names import ANNOTATION_DRAIN_DEADLINE
from pagoda_operator.api.errors import Superseded
from pagoda_operator.api.pods import Answer, DaemonState, Order
from pagoda_operator.api.state import PODS
from support.kube.fake_api import Body, FakeApi, running


@dataclass
class FakeDaemon:
    """One of them."""

    draining: bool = False
    deadline_ms: int = 0
    in_flight: int = 0
    epoch: int = 0
    unreachable: bool = False


class FakeDaemons:
    """`give` is what the operator calls; the rest is the test's."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.epoch = 1
        self.reported: list[tuple[str, str]] = []
        self.refusing = False
        self.last: dict[str, DaemonState] = {}  # uid → the answer to the last order
        self._known: dict[str, FakeDaemon] = {}

    def of(self, pod: Body) -> FakeDaemon:
        """The pod's daemon."""
        return self._known.setdefault(pod["metadata"]["uid"], FakeDaemon())

    async def give(self, orders: Sequence[Order]) -> dict[str, Answer]:
        answers = {order.uid: self._obey(order) for order in orders}
        self.last |= {uid: answer.state for uid, answer in answers.items()}
        return answers

    def _obey(self, order: Order) -> Answer:
        named = next((pod["metadata"]["uid"] for pod in self.api.of(PODS) if pod["metadata"]["name"] == order.pod), order.uid)
        assert order.uid == named, f"an order for {order.uid} went to {order.pod}, which is {named}: its daemon would refuse it"
        daemon = self._known.setdefault(order.uid, FakeDaemon())
        self.reported.append((order.pod, "serve" if order.deadline_ms is None else "drain"))
        if self.refusing:
            return Answer(DaemonState.REFUSED)
        if daemon.unreachable:
            return Answer(DaemonState.SILENT)
        if self.epoch < daemon.epoch:
            raise Superseded(f"epoch {self.epoch}")
        daemon.epoch = self.epoch
        if order.deadline_ms is None:
            daemon.draining, daemon.deadline_ms = False, 0
        elif not daemon.draining:
            daemon.draining, daemon.deadline_ms = True, order.deadline_ms
        return Answer(DaemonState.DRAINING if daemon.draining else DaemonState.SERVING, daemon.in_flight)

    def probe(self) -> None:
        """Kubelets look: a daemon that is up and does not drain is ready; one that was never started comes up."""
        for pod in self.api.of(PODS):
            if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") in (None, "Pending", "Running"):
                self.bring_up(pod)

    def bring_up(self, pod: Body) -> None:
        """One pod, as its kubelet sees it."""
        self.api.report(pod, running(ready=not self.of(pod).draining) | {"podIP": "10.0.0.1"})

    def routable(self) -> list[Body]:
        """Pods that a gateway would choose."""
        return [
            pod
            for pod in self.api.of(PODS)
            if "deletionTimestamp" not in pod["metadata"]
            and ANNOTATION_DRAIN_DEADLINE not in pod["metadata"].get("annotations", {})
            and pod["status"].get("phase") == "Running"
            and not self.of(pod).draining
        ]
