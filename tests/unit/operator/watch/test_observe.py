"""One observation waits for answers side by side, and for no read that it does not need."""

import asyncio

import pytest
from pagoda_operator.api.errors import Unavailable
from pagoda_operator.api.state import CHILD_RESOURCES, PODS, PROFILES, SERVICES, Key
from pagoda_operator.watch.observe import observe

KEY = Key("ns", "chat")


class Slow:
    """Answers each read when it is let."""

    def __init__(self, **meta):
        self.body = {
            "metadata": {"name": "chat", "namespace": "ns", "uid": "u", "resourceVersion": "1", "generation": 1} | meta,
            "spec": {},
        }
        self.open, self.broken = {}, set()

    async def _answer(self, resource, answer):
        gate = self.open[resource] = asyncio.Event()
        try:
            await gate.wait()
        finally:
            del self.open[resource]
        if resource in self.broken:
            raise Unavailable("away")
        return answer

    async def get(self, resource, *_):
        return await self._answer(resource, self.body if resource == SERVICES else None)

    async def list(self, resource, *_):
        return await self._answer(resource, [])


async def turns():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_children_are_asked_for_beside_the_service_and_the_profile_beside_the_children():
    reader = Slow()
    task = asyncio.create_task(observe(reader, KEY))
    await turns()
    assert reader.open.keys() == {SERVICES, PODS, *CHILD_RESOURCES}
    reader.open[SERVICES].set()
    await turns()
    assert reader.open.keys() == {PROFILES, PODS, *CHILD_RESOURCES}
    for gate in list(reader.open.values()):
        gate.set()
    assert (await task).meta.uid == "u"


@pytest.mark.parametrize("going", [True, False])
async def test_of_who_is_gone_or_going_no_profile_is_read(going):
    reader = Slow(deletionTimestamp="2026-11-22T00:00:00Z")
    reader.body = reader.body if going else None
    task = asyncio.create_task(observe(reader, KEY))
    await turns()
    assert PROFILES not in reader.open
    for gate in list(reader.open.values()):
        gate.set()
    assert await task is None


@pytest.mark.parametrize("resource", [SERVICES, PODS])
async def test_after_an_error_no_read_goes_on(resource):
    """An answer that came after the next run's would tell the mirror of an older state, and in an outage nobody waits for it."""
    reader = Slow()
    reader.broken = {resource}
    task = asyncio.create_task(observe(reader, KEY))
    await turns()
    reader.open[resource].set()
    with pytest.raises(Unavailable, match="away"):
        await task
    await turns()
    assert reader.open == {}
