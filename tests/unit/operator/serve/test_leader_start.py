"""What comes before all work: in the leader only, and once."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from pagoda_operator.api.errors import SettingsError
from pagoda_operator.serve.process import _existing, _prepare, _when_ready


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


class Namespaces:
    """An API server with these; one that ends has a deletionTimestamp."""

    def __init__(self, *names, ending=()):
        self.bodies = [{"metadata": {"name": name} | ({"deletionTimestamp": "now"} if name in ending else {})} for name in names]
        self.closed = False

    async def list(self, _resource, _namespace, _selector):
        return self.bodies

    async def close(self):
        self.closed = True


async def test_namespaces_that_are_gone_do_not_keep_the_others_from_being_served():
    cluster = Namespaces("a", "b", "c", ending="b")
    assert await _existing(cluster, ("a", "b", "d")) == ("a",)
    assert cluster.closed
    with pytest.raises(SettingsError, match="none of b, d exists"):
        await _existing(cluster, ("b", "d"))
