"""Reproducer of an advisory about who is let in: no spelling of host or path goes round the guard."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pagoda_contracts.launch import AuthConfig
from pagoda_daemon.api.access.roles import OPEN, ROUTES
from support.servers.local_replica import LocalReplica, local_replica, request

KEY = "a-key-of-the-tests"
HOSTS = ("x", "x/health", "x/health?", "x/health#", "x/version?a=", "x@/health?", "127.0.0.1:8081/health?", "a/v1", "[::1]/health?", "")
PREFIXES = ("http://x", "http://x@y", "/", "/.", "/health/..", "/%2e", "/v1/../")


def statuses(answers: list[bytes]) -> list[int]:
    return [int(answer.split()[1]) if answer else 0 for answer in answers]


async def without_a_key(replica: LocalReplica, path: str) -> list[bytes]:
    method = "POST" if path.startswith(("/v1/chat", "/v1/comp", "/tok", "/detok")) else "GET"
    raws = [request(method, path, host=host) for host in HOSTS]
    raws += [request(method, prefix + path) for prefix in PREFIXES]
    return [await replica.send(raw) for raw in raws]


async def test_no_spelling_of_host_or_path_goes_round_the_guard(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(KEY.encode()).hexdigest()} tester\n")
    closed = sorted(path.replace("{name:path}", "toy").replace("{id}", "x") for path, roles in ROUTES.items() if roles != OPEN)
    async with local_replica(auth=AuthConfig(keys_file=str(keys))) as replica:
        for path in closed:
            # 404: a route that is not built, or a path that is none; 400: no host at all. Never an answer.
            assert set(statuses(await without_a_key(replica, path))) <= {400, 401, 403, 404, 405}, path
        status, _ = await replica.get("/v1/models")
        assert status == 401
        known = await replica.send(request("GET", "/v1/models", authorization=f"Bearer {KEY}"))
        assert known.startswith(b"HTTP/1.1 200 ")
        assert KEY.encode() not in known
