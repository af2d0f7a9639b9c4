"""What comes before all work: of the leader only, and once."""

import asyncio

from pagoda_operator.serve.process import _Start


class Steps(list):
    def step(self, name):
        async def done(*_):
            await asyncio.sleep(0)
            self.append(name)

        return done


async def test_preparations_are_made_once_for_all_workers_and_only_by_a_leader():
    steps, acquired = Steps(), asyncio.Event()
    start = _Start(acquired, (steps.step("lists"), steps.step("pools")))
    workers = [asyncio.create_task(start.wait()) for _ in range(32)]
    await asyncio.sleep(0)
    assert steps == []
    acquired.set()
    await asyncio.gather(*workers)
    await start.wait()  # one that comes later
    assert steps == ["lists", "pools"]


async def test_a_worker_that_is_cancelled_while_it_prepares_leaves_that_to_the_next():
    steps, here, gate, acquired = Steps(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    acquired.set()

    async def pools():
        here.set()
        await gate.wait()
        steps.append("pools")

    start = _Start(acquired, (steps.step("lists"), pools))
    first, second = (asyncio.create_task(start.wait()) for _ in range(2))
    await here.wait()
    first.cancel()
    gate.set()
    await second
    assert steps == ["lists", "lists", "pools"]
