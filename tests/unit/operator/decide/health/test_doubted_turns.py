"""Whose turn it is to go where somebody is doubted and not called sick yet."""

from dataclasses import replace

from pagoda_operator.api.signals import CONFIRM_S, EndpointSignal, Seen, ServiceSignals
from pagoda_operator.api.state import PODS
from pagoda_operator.decide.health.health import judge
from pagoda_operator.decide.replicas.drain import Turn
from support.worlds.world import World


def test_one_that_answers_nobody_at_this_moment_goes_before_those_that_answer():
    world = World(replicas=3)
    world.settle()
    world.make_ready()
    late, stuck, well = (pod["metadata"]["name"] for pod in world.api.of(PODS))
    told = {
        late: EndpointSignal(Seen.DEAD, "overdue", bad_s=20.0),
        stuck: EndpointSignal(Seen.DEAD, "stuck", bad_s=CONFIRM_S),
        well: EndpointSignal(Seen.FRESH),
    }
    observed = replace(world.observed(), signals=ServiceSignals(fresh=True, endpoints=told), unheard_s=0.0)
    assert judge(observed).turns == {late: Turn.DOUBTED, stuck: Turn.FIRST}
