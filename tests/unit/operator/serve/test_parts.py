"""What comes before all work: of the leader only, and once."""

import asyncio
from types import SimpleNamespace

from pagoda_operator.api.state import SERVICES, Key
from pagoda_operator.serve.parts import _alone, _Start
from pagoda_operator.watch.mirror import Mirror


class Steps(list):
    def step(self, name):
        async def done(*_):
            await asyncio.sleep(0)
            self.append(name)

        return done


async def test_mirrors_and_preparations_are_waited_for_once_for_all_workers_and_only_by_a_leader():
    steps = Steps()
    lease, complete = asyncio.Event(), asyncio.Event()
    made = SimpleNamespace(lease=SimpleNamespace(acquired=lease), vitals=SimpleNamespace(complete=complete))
    start = _Start(made, SimpleNamespace(quiet=steps.step("quiet")), (steps.step("pools"), steps.step("caps")))
    workers = [asyncio.create_task(start.wait()) for _ in range(32)]
    for event in (lease, complete):
        await asyncio.sleep(0)
        assert steps == []
        event.set()
    await asyncio.gather(*workers)
    await start.wait()  # one that comes later
    assert steps == ["quiet", "pools", "caps"]


async def test_a_worker_that_is_cancelled_while_it_prepares_leaves_that_to_the_next():
    steps, here, gate = Steps(), asyncio.Event(), asyncio.Event()
    event = asyncio.Event()
    event.set()
    made = SimpleNamespace(lease=SimpleNamespace(acquired=event), vitals=SimpleNamespace(complete=event))

    async def pools():
        here.set()
        await gate.wait()
        steps.append("pools")

    start = _Start(made, SimpleNamespace(quiet=steps.step("quiet")), (pools,))
    first, second = (asyncio.create_task(start.wait()) for _ in range(2))
    await here.wait()
    first.cancel()
    gate.set()
    await second
    assert steps == ["quiet", "quiet", "pools"]


def test_before_all_watches_have_listed_no_name_is_known_to_be_in_one_namespace_alone():
    made = SimpleNamespace(mirror=Mirror(lambda: 0.0), vitals=SimpleNamespace(complete=asyncio.Event()))
    alone = _alone(made)
    made.mirror.put(SERVICES, {"metadata": {"namespace": "n1", "name": "chat", "resourceVersion": "7"}})
    assert not alone(Key("n1", "chat"))
    made.vitals.complete.set()
    assert (alone(Key("n1", "chat")), alone(Key("n1", "other"))) == (True, False)
