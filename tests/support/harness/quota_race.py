"""Gateways that race for one tenant's tokens in a common store, and are killed meanwhile. Run as a script it is one gateway.

A gateway here is what admits, counts and settles in a real one (requests/limiter.py, requests/shared_store.py), without HTTP. What its
requests really used stands in a file that outlives it: a prompt from the moment it is sent, a token of an answer when it is passed on.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import random
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import redis
from pagoda_contracts.resources.apikeys import SECRET_PREFIX
from pagoda_contracts.usage import Used
from pagoda_gateway.limits.bounds import Wish
from pagoda_gateway.limits.registry import Registry, Subject
from pagoda_gateway.limits.rules import Rule, Window
from pagoda_gateway.limits.script import key
from pagoda_gateway.requests.errors import OverQuota
from pagoda_gateway.requests.limiter import Asked, Limiter, LocalStore
from pagoda_gateway.requests.names import Names
from pagoda_gateway.requests.shared_store import Lease, SharedStore, connected
from pagoda_gateway.watch.cache import EndpointCache

TENANT = "racer"
WINDOW_MS = 720 * 3_600_000
PROMPT, ANSWER = 80, 120  # tokens at most
PARALLEL = 64
PATIENCE_S = 300.0
_COUNTS = struct.Struct("<3q")


class Counts(NamedTuple):
    """Of one life of a gateway: tries, admitted ones, and tokens that were really used."""

    tries: int = 0
    granted: int = 0
    tokens: int = 0


class Journal:
    """Counts in a file that a killed process leaves as they are."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_COUNTS.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _COUNTS.size)

    def read(self) -> Counts:
        return Counts(*_COUNTS.unpack_from(self._memory))

    def add(self, tries: int = 0, granted: int = 0, tokens: int = 0) -> None:
        known = self.read()
        _COUNTS.pack_into(self._memory, 0, known.tries + tries, known.granted + granted, known.tokens + tokens)


class _Keys:
    version = 0

    def tenants(self) -> dict[str, str]:
        return {}


@dataclass
class Gateway:
    """One life of one."""

    limiter: Limiter
    journal: Journal
    chance: random.Random
    left: int

    async def serve(self) -> None:
        while self.left > 0:
            self.left -= 1
            await self.request()

    async def request(self) -> None:
        most = self.chance.randint(1, ANSWER)
        self.journal.add(tries=1)
        try:
            async with self.limiter.admitted(Asked(TENANT, "m", lambda: Wish(PROMPT, most))) as account:
                prompt, answer = self.chance.randint(1, PROMPT), self.chance.randint(0, most)
                account.sent = True
                self.journal.add(granted=1, tokens=prompt)
                for done in sorted(self.chance.sample(range(1, answer + 1), min(answer, 4))):
                    before = account.used.answer if account.used else 0
                    await account.note(Used(prompt, 0, done))
                    self.journal.add(tokens=done - before)
                    await asyncio.sleep(0)
                if account.used is None:
                    await account.note(Used(prompt, 0, 0))
        except OverQuota:
            return


async def _live(plan: dict[str, Any]) -> None:
    registry = Registry(_Keys(), None)
    window = Window("720h", WINDOW_MS, None, plan["limit"])
    registry.put("q", Subject("any", SECRET_PREFIX + TENANT), Rule("q", windows=(window,), concurrency=10**6))
    heard: list[bool] = []
    store = SharedStore(connected(plan["url"], PATIENCE_S), LocalStore(1, lambda: 0), plan["name"], heard.append, Lease(*plan["lease"]))
    limiter = Limiter(registry, store, lambda _quota, _kind: None, Names(EndpointCache(), lambda: 0.0))
    gateway = Gateway(limiter, Journal(Path(plan["journal"])), random.Random(plan["name"]), plan["left"])
    work = asyncio.create_task(store.run())
    await asyncio.gather(*(gateway.serve() for _ in range(PARALLEL)))
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await store.close()
    if not all(heard):
        sys.exit("the store was away meanwhile: nothing is shown")


@dataclass
class Race:
    """`tries` admissions over `gateways`, of which `kills` are killed and begun anew. `lease`: milliseconds, and seconds of a renewal."""

    url: str
    folder: Path
    tries: int
    limit: int
    kills: int
    gateways: int = 4
    lease: tuple[int, float] = (30_000, 10.0)
    seed: int = 1

    def __post_init__(self) -> None:
        self._journals: list[Journal] = []
        self._chance = random.Random(self.seed)

    def run(self) -> dict[str, Any]:
        """The judgement: what was used, what is charged, and how long lost reservations counted."""
        began = time.monotonic()
        share = self.tries // self.gateways
        living = [self._begin(share) for _ in range(self.gateways)]
        killed_at = began
        for kill in range(self.kills):
            self._until(self.tries * (kill + 1) // (self.kills + 2), living)
            at = self._chance.randrange(self.gateways)
            process, journal, mine = living[at]
            process.kill()
            process.wait()
            killed_at = time.monotonic()
            living[at] = self._begin(mine - journal.read().tries)
        codes = [process.wait(PATIENCE_S) for process, _, _ in living]
        ended = time.monotonic()
        assert codes == [0] * self.gateways, codes
        back = self._all_back()
        counts = [journal.read() for journal in self._journals]
        real, granted = sum(one.tokens for one in counts), sum(one.granted for one in counts)
        return {
            "tries": sum(one.tries for one in counts),
            "admitted": granted,
            "kills": self.kills,
            "limit": self.limit,
            "real_tokens": real,
            "overshoot": max(0, real - self.limit),
            "charged_tokens": self._charged(),
            "seconds": round(ended - began, 1),
            "lost_back_after_last_kill_s": round(back - killed_at, 1),
        }

    def _begin(self, left: int) -> tuple[subprocess.Popen[bytes], Journal, int]:
        path = self.folder / f"journal-{len(self._journals)}"
        journal = Journal(path)
        self._journals.append(journal)
        plan = {"url": self.url, "name": path.name, "journal": str(path), "left": left, "limit": self.limit, "lease": self.lease}
        return subprocess.Popen([sys.executable, "-P", __file__, json.dumps(plan)]), journal, left

    def _until(self, tries: int, living: list[tuple[subprocess.Popen[bytes], Journal, int]]) -> None:
        while sum(journal.read().tries for journal in self._journals) < tries:
            assert any(process.poll() is None for process, _, _ in living)
            time.sleep(0.005)

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def _all_back(self) -> float:
        """When no reservation counts any more. A gateway looks at each admission; this one admits nothing, and looks all the same."""
        from pagoda_gateway.limits.ledger import Ask
        from pagoda_gateway.limits.script import SCRIPT, arguments

        with self._client() as client:
            look = client.register_script(SCRIPT)
            while True:
                look(keys=[key(TENANT)], args=arguments("settle", Ask("eye", TENANT, (), 0, 0), "eye", 1))
                if int(client.hget(f"{key(TENANT)}:running", "q") or 0) == 0:
                    return time.monotonic()
                time.sleep(0.05)

    def _charged(self) -> int:
        with self._client() as client:
            (window,) = client.keys(f"{key(TENANT)}:w:*")
            return int(client.hget(window, "t"))


if __name__ == "__main__":
    asyncio.run(_live(json.loads(sys.argv[1])))
