"""What comes before all work: in the leader only, and once."""

import asyncio
import contextlib
from types import SimpleNamespace

from pagoda_operator.serve.process import _prepare, _when_ready


async def test_a_leader_prepares_once_before_any_worker_begins():
    steps, acquired, ready = [], asyncio.Event(), asyncio.Event()

    def step(name):
        async def done():
            await asyncio.sleep(0)
            steps.append(name)

        return done

    lease, reflectors, inventory = (
        SimpleNamespace(acquired=acquired),
        SimpleNamespace(list_all=step("lists")),
        SimpleNamespace(load=step("pools")),
    )
    preparing = asyncio.create_task(_prepare(lease, reflectors, inventory, ready))
    workers = [asyncio.create_task(_when_ready(ready, step("work"))) for _ in range(3)]
    await asyncio.sleep(0)
    assert steps == []
    acquired.set()
    await asyncio.gather(*workers)
    assert steps == ["lists", "pools", "work", "work", "work"]
    assert not preparing.done()  # a part that ends would end the process
    preparing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await preparing
