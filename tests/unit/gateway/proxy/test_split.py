"""Requests that the gateway splits between revisions by weight."""

import asyncio

from pagoda_contracts.pb.daemon_pb2 import Phase
from support.servers.gateway_process import write_fleet


async def test_requests_are_split_by_weight_and_a_revision_that_can_take_none_loses_none(bench, replicas):
    old, new = replicas
    old.say(revision="old")
    new.say(revision="new")
    await bench.serve(old, new)
    weights = {"weights": {"old": 75, "new": 25}, "endpoints": [old.entry(), new.entry()]}
    write_fleet(bench.file, [{"name": bench.service, "served_names": ["m"], **weights}])
    await eventually_split(bench, new.name)
    answers = [(await bench.ask())[1]["replica"] for _ in range(40)]
    assert 8 <= answers.count(new.name) <= 12
    new.say(phase=Phase.PHASE_DRAINING, revision="new")
    await bench.sees(draining=1)
    assert {(await bench.ask())[1]["replica"] for _ in range(10)} == {old.name}


async def eventually_split(bench, rare):
    """The file is read again some time after it was written: until then equals take turns, and half of ten go to each."""
    async with asyncio.timeout(120):
        while [(await bench.ask())[1]["replica"] for _ in range(10)].count(rare) >= 4:
            pass
