"""Reproducers of advisories about what an answer gives away: addresses, paths, names of shared memory, series by the client's choice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pagoda_daemon.api.routes.generation import Generator
from support.judges.refusals import CHAT, COMPLETIONS, LEAK, PATIENCE_S, all_refused, chat, completion, error_of, served
from support.servers.local_replica import LocalReplica, LockStep, local_replica, request

SECRETS = "/models/secret/weights.bin at 0x7f3a5c001230 in shm_pagoda_17"


async def failing(replica: LocalReplica) -> str:
    """The whole answer to a request that ends in an error."""
    async with asyncio.timeout(PATIENCE_S):
        status, answer = await replica.post(COMPLETIONS, completion())
    assert status == 500
    error_of(answer)
    return str(answer)


async def test_a_bug_in_the_front_says_nothing_of_itself() -> None:
    async def broken(*_: Any, **__: Any) -> AsyncIterator[Any]:
        raise RuntimeError(SECRETS)
        yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Generator, "_deltas", broken)
        async with local_replica() as replica:
            assert not LEAK.search(await failing(replica))


async def test_a_step_that_fails_says_nothing_of_the_device() -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError(SECRETS)

    async with local_replica() as replica:
        with pytest.MonkeyPatch.context() as patch:  # once it is ready: it is not before its canary has been answered
            patch.setattr(LockStep, "execute", broken)
            assert not LEAK.search(await failing(replica))
            await replica.at_rest()


async def test_a_refusal_says_nothing_of_the_code_that_refuses() -> None:
    wrong: list[Any] = [None, True, -1, 2**70, 1.5, "x" * 1000, [], [[]], [{}], {}, {"a": 1}, [None], "\u0000", "../../etc"]
    names = ("model", "prompt", "max_tokens", "temperature", "stop", "stream_options", "logit_bias", "seed", "temprature")
    errors = await all_refused(*(completion(**{name: value}) for name in names for value in wrong if _is_wrong(name, value)))
    errors += await all_refused(*(chat(messages=value) for value in (3, "x", {}, [3], [{"role": 3}], [{"content": "x"}])), path=CHAT)
    assert [error for error in errors if LEAK.search(str(error))] == []


def _is_wrong(name: str, value: Any) -> bool:
    fine = {
        "prompt": ("x" * 1000, "\u0000", "../../etc"),
        "max_tokens": (None,),
        "temperature": (None, 1.5),
        "stop": (None, [], "\u0000", "../../etc"),
        "stream_options": (None,),
        "logit_bias": (None, {}),
        "seed": (None, -1),
    }
    return not any(value is one or (value == one and type(value) is type(one)) for one in fine.get(name, ()))


async def test_no_series_is_made_of_what_a_client_writes() -> None:
    luck = random.Random(5)
    methods = ("GET", "PUT", "PATCH", "DELETE", "PROPFIND", "MKCOL", "REPORT", "OPTIONS", "M-SEARCH")

    def word() -> str:
        return "".join(luck.choices("abcdefgh", k=8))

    async with local_replica() as replica:
        await served(replica)
        await replica.post(COMPLETIONS, completion(model="other"))
        await replica.post(CHAT, chat(temperature=9))
        for method in methods:
            await replica.send(request(method, "/v1/first"))
        await series(replica)
        before = await series(replica)
        for _ in range(60):
            await replica.send(request(luck.choice(methods), f"/v1/{word()}", x_request_id=word(), user_agent=word()))
            await replica.post(COMPLETIONS, completion(model=word(), user=word()))
        assert await series(replica) == before


async def series(replica: LocalReplica) -> set[str]:
    status, body = await replica.get("/metrics")
    assert status == 200
    return {line.rpartition(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")}
