"""A rollout of a model that loads for long: gateways report its replica all the while, and have a minute once it is Ready."""

import pytest
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_operator.api.signals import MISSING_S
from pagoda_operator.api.state import DEPLOYMENTS, PODS
from pagoda_operator.client.signals import Signals
from support.harness.harness import KEY
from support.harness.status_states import READY, pods

GATEWAYS = ("quick", "slow")


class Rollout:
    """The old replica is admitted by both gateways; the new one has loaded for longer than a minute, under their eyes, and is Ready now."""

    def __init__(self):
        self.now = 1000.0
        self.signals = Signals(lambda: self.now, lambda _: None)
        self.harness = pods(READY, rollout={"strategy": "Surge"})()
        self.harness.signals = self.signals
        self.harness.restart()
        self.old = self.harness.names(PODS)
        self.pass_by(1)
        self.harness.edit(engine={"maxModelLen": 128})
        self.harness.settle()
        self.pass_by(MISSING_S + 10)
        self.harness.settle()
        (new,) = (pod for pod in self.harness.api.of(PODS) if pod["metadata"]["name"] not in self.old)
        self.harness.api.report(new, READY)

    def pass_by(self, seconds, *admit):
        """So long those gateways send requests to the new replica, too."""
        for _ in range(round(seconds)):
            self.now += 1
            for gateway in GATEWAYS:
                rows = [self.row(name, admitted=gateway in admit) for name in self.harness.names(PODS)]
                service = pb.ServiceDemand(namespace=KEY.namespace, name=KEY.name, endpoints=rows)
                self.signals.hear(gateway, pb.Demand(full=True, services=[service]))
            self.signals.tick()

    def row(self, name, *, admitted):
        phase = Phase.PHASE_READY if admitted or name in self.old else Phase.PHASE_LOADING
        return pb.EndpointDemand(pod=name, verdict=pb.VERDICT_FRESH, phase=phase)

    @property
    def old_serves(self):
        self.harness.settle()
        return len(self.harness.api.of(DEPLOYMENTS)) == 2


@pytest.mark.parametrize("admit", [("quick",), ()], ids=["one of two admits it", "none admits it"])
def test_an_old_replica_waits_for_a_minute_from_ready_for_gateways_that_do_not_admit_the_new_one(admit):
    rollout = Rollout()
    rollout.pass_by(1, *admit)
    assert rollout.old_serves
    rollout.pass_by(MISSING_S - 1, *admit)
    assert rollout.old_serves
    assert "not every gateway has admitted it yet" in rollout.harness.conditions()["Ready"]["message"]
    rollout.pass_by(2, *admit)
    assert not rollout.old_serves


def test_an_old_replica_goes_at_once_when_each_gateway_admits_the_new_one():
    rollout = Rollout()
    rollout.pass_by(1, "quick")
    assert rollout.old_serves
    rollout.pass_by(1, *GATEWAYS)
    assert not rollout.old_serves
