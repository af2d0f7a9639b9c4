"""Reproducers of advisories about what tenants learn of each other: shared beginnings, equal names of different contents, clients' ids."""

from __future__ import annotations

import asyncio

from pagoda_contracts.prefix import Scope, root, token_hashes
from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.simulated.device.worker import SimulatedWorker, expected_tokens
from support.engine.drive import Drive
from support.engine.toy_model import VOCAB
from support.judges.refusals import COMPLETIONS, PATIENCE_S, completion
from support.servers.local_replica import local_replica

BLOCK = 4


def reused(first: dict[str, str], second: dict[str, str]) -> int:
    """Tokens of the second request's prompt that need no computing once the first, which asks the same, is answered."""
    drive = Drive(SimulatedWorker(WorkerLimits(64, BLOCK, 97, 64)), 8, 64)
    for number, fields in enumerate((first, second)):
        drive.submit(str(number), range(24), 2, **fields)
        drive.drain()
    return int(drive.state.stats().reused_tokens)


async def test_tenants_share_no_beginning() -> None:
    assert reused({"tenant": "one"}, {"tenant": "one"}) > 0
    assert reused({"tenant": "one"}, {"tenant": "two"}) == 0


async def test_a_salt_keeps_beginnings_apart_within_a_tenant() -> None:
    assert reused({"tenant": "one", "cache_salt": "x"}, {"tenant": "one", "cache_salt": "y"}) == 0
    assert reused({"tenant": "one", "cache_salt": "x"}, {"tenant": "two", "cache_salt": "x" * 2}) == 0


async def test_different_contents_have_different_names() -> None:
    scope = Scope("salt", "model")
    names = {token_hashes(scope, [first, second, 0, 0], BLOCK)[0] for first in range(100) for second in range(100)}
    assert len(names) == 100 * 100


async def test_different_scopes_have_different_names_however_they_are_cut() -> None:
    scopes = (Scope("a", "bc"), Scope("ab", "c"), Scope("abc", ""), Scope("", "abc"), Scope("a", "b", "c"), Scope("a", "", "bc"))
    assert len({root(scope, "tokens", BLOCK) for scope in scopes}) == len(scopes)


async def test_a_clients_request_id_names_nothing_here() -> None:
    async with local_replica() as replica, asyncio.timeout(PATIENCE_S):
        prompts = [[n + 1, 7] for n in range(8)]
        bodies = [completion(prompt=prompt, max_tokens=40, ignore_eos=True) for prompt in prompts]
        answers = await asyncio.gather(*(replica.post(COMPLETIONS, body, x_request_id="the-same") for body in bodies))
        said = [answer["choices"][0]["text"] for _, answer in answers]
        assert said == [replica.text.decode(expected_tokens(prompt, 40, VOCAB)) for prompt in prompts]
        assert len({message.request_id for message in replica.engine.submitted}) == len(prompts)
        await replica.at_rest()
