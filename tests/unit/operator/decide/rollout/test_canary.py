"""A canary is judged by what gateways tell: they count first tokens, their frames go over the wire, the operator's runs act on it."""

import pytest
from pagoda_contracts.names import LABEL_REVISION
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_gateway.demand.service_demand import Facts, Held, service_demand
from pagoda_gateway.requests.tally import Tally
from pagoda_gateway.watch.services import Service
from pagoda_operator.api.state import DEPLOYMENTS, PODS, SERVICES
from pagoda_operator.client.signals import Signals
from support.harness.harness import KEY
from support.harness.status_states import READY, pods, rolled

WHERE = f"{KEY.namespace}/{KEY.name}"


class Canary:
    """Half of the requests go to the new revision, whose replica answers; no gateway has told of requests yet."""

    def __init__(self, limit):
        self.now = 1000.0
        self.signals = Signals(lambda: self.now, lambda _: None)
        rollout = {"canary": {"steps": [{"weight": 50, "hold": "1h"}], "abortOn": {"ttftP95": limit}}}
        self.harness = pods(READY, READY, rollout=rollout)()
        self.harness.signals = self.signals
        self.harness.restart()
        (self.old,) = self.revisions()
        rolled(self.harness, READY)
        (self.new,) = self.revisions() - {self.old}
        self.report((0, 0), (0, 0))
        self.harness.settle()
        assert self.harness.reason() == "Canary"

    def revisions(self):
        return {body["metadata"]["labels"][LABEL_REVISION] for body in self.harness.api.of(DEPLOYMENTS)}

    def report(self, new, old, gateway="g"):
        """Requests of a minute, by that gateway's own counters: how many, how long to the first token."""
        tally, now_ms = Tally(), 1e6
        for revision, (count, took_ms) in ((self.new, new), (self.old, old)):
            for _ in range(count):
                tally.tried(WHERE, revision, now_ms, failed=False)
                tally.first_token(WHERE, revision, took_ms, now_ms)
        reported = service_demand(Facts(Service(WHERE, "uid", "2026", (KEY.name,)), (), Held(0, None), tally.of(WHERE)), now_ms)
        reported.endpoints.extend(
            pb.EndpointDemand(pod=pod["metadata"]["name"], verdict=pb.VERDICT_FRESH, reason="ready", phase=Phase.PHASE_READY)
            for pod in self.harness.api.of(PODS)
        )
        frame = pb.Demand(gateway=gateway, sequence=1, full=True, services=[reported]).SerializeToString()
        self.signals.hear(gateway, pb.Demand.FromString(frame))
        self.signals.tick()

    def weights(self):
        return {one["hash"]: one.get("weight") for one in self.harness.api.of(SERVICES)[0]["status"]["revisions"]}


@pytest.mark.parametrize(
    ("limit", "new", "old", "over"),
    [
        ("1.5x", (100, 1700), (100, 1000), "abortOn.ttftP95 is 1.5x of the old one's 0.96 s"),
        ("1.5x", (100, 1300), (100, 1000), ""),
        ("1.5x", (39, 9000), (100, 1000), ""),
        ("1.5x", (100, 9000), (39, 1000), ""),
        ("2s", (100, 2500), (0, 0), "abortOn.ttftP95 is 2s"),
        ("2s", (100, 1700), (100, 100), ""),
    ],
)
def test_a_report_of_late_first_tokens_ends_a_canary(limit, new, old, over):
    canary = Canary(limit)
    canary.report(new, old)
    canary.harness.settle()
    reported = canary.harness.conditions()["Stalled"]
    assert (reported["status"], canary.harness.reason()) == (("True", "RolledBack") if over else ("False", "Canary"))
    assert over in reported["message"]
    assert canary.weights()[canary.old] == (100 if over else 50)


def test_of_two_gateways_requests_add_up_and_the_slower_one_counts():
    canary = Canary("1.5x")
    canary.report((25, 1000), (25, 1000), "g")
    canary.report((25, 1700), (25, 900), "h")
    canary.harness.settle()
    assert canary.harness.conditions()["Stalled"]["reason"] == "RolledBack"
    assert "(p95 of 50 requests)" in canary.harness.conditions()["Stalled"]["message"]


def test_old_reports_of_a_silent_gateway_end_no_canary():
    canary = Canary("1.5x")
    canary.report((100, 9000), (100, 1000))
    canary.now += 4
    canary.signals.tick()
    canary.harness.settle()
    assert canary.harness.reason() == "Canary"
    assert "no gateway reports on the new revision" in canary.harness.conditions()["Ready"]["message"]
