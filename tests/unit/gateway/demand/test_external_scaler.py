"""What KEDA is answered: triggers are parsed and refused, figures are sums over replicas, "unknown" is never zero; held requests of other
gateways count once."""

import pytest
from pagoda_contracts.pb import demand_pb2 as pb
from pagoda_gateway.demand.external_scaler import Load, TriggerError, parse_trigger, values
from pagoda_gateway.demand.peers import Peers


def demand(*verdicts, **fields):
    return pb.ServiceDemand(namespace="ns", name="s", endpoints=[pb.EndpointDemand(verdict=verdict) for verdict in verdicts], **fields)


def test_a_trigger_names_a_service_of_its_own_namespace_and_a_target_per_figure():
    trigger = parse_trigger("ns", {"scalerAddress": "g:9100", "service": "s", "requests": "8", "kvUtilization": "0.8"})
    assert (trigger.service, dict(trigger.targets)) == ("ns/s", {"requests": 8.0, "kvUtilization": 0.8})


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"requests": "8"}, "metadata.service is missing"),
        ({"service": "s"}, "at least one of requests, queueDepth, kvUtilization"),
        ({"service": "s", "request": "8"}, "unknown field 'request'"),
        ({"service": "s", "requests": "many"}, "metadata.requests is 'many'; it must be a number above 0"),
        ({"service": "s", "requests": "0"}, "above 0"),
        ({"service": "s", "requests": "inf"}, "above 0"),
        ({"service": "s", "kvUtilization": "80"}, "above 0 and at most 1"),
    ],
)
def test_a_trigger_that_is_not_valid_is_refused_with_what_is_accepted(metadata, says):
    with pytest.raises(TriggerError, match=says):
        parse_trigger("ns", metadata)


def test_figures_are_sums_over_replicas_and_gateways():
    load = Load(demand(pb.VERDICT_FRESH, pb.VERDICT_SUSPECT, held=2, waiting=3, running=10, blocks_used=90, blocks_total=100), 5)
    trigger = parse_trigger("ns", {"service": "s", "requests": "8", "queueDepth": "2", "kvUtilization": "0.8"})
    assert values(trigger, load, "") == {"requests": 20.0, "queueDepth": 10.0, "kvUtilization": pytest.approx(1.8)}
    assert values(trigger, load, "queueDepth") == {"queueDepth": 10.0}
    with pytest.raises(TriggerError, match="no target for 'ttft'"):
        values(trigger, load, "ttft")


def test_replicas_of_which_none_is_heard_are_unknown_and_a_service_without_replicas_is_not():
    assert Load(demand(pb.VERDICT_DEAD, pb.VERDICT_UNSPECIFIED), 0).unheard()
    assert not Load(demand(pb.VERDICT_DEAD, pb.VERDICT_FRESH), 0).unheard()
    assert not Load(demand(), 0).unheard()


def frame(gateway, full=True, **held):
    return pb.Demand(gateway=gateway, full=full, services=[pb.ServiceDemand(namespace="ns", name=name, held=n) for name, n in held.items()])


def test_the_other_gateways_held_requests_are_added_until_one_is_silent_or_lets_them_go():
    now, changed = [0.0], []
    peers = Peers((), "me", lambda: now[0])
    peers.changed = changed.append
    peers.take("a", frame("me", s=7))
    peers.take("b", frame("b", s=2, t=1))
    peers.take("c", frame("c", s=3))
    assert (peers.held("ns/s"), peers.held("ns/t"), peers.held("ns/u")) == (5, 1, 0)
    changed.clear()
    peers.take("b", frame("b", full=False, t=4))
    assert (peers.held("ns/s"), peers.held("ns/t"), changed) == (5, 4, ["ns/t"])
    changed.clear()
    peers.take("b", frame("b", s=0))
    assert (peers.held("ns/s"), peers.held("ns/t"), sorted(changed)) == (3, 0, ["ns/s", "ns/t"])
    now[0] = 3_001.0
    assert peers.held("ns/s") == 0
