"""Clients that only want to know how it ended: streamed and whole completions side by side, each with the times of its bytes."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx
from pagoda_contracts.names import HEADER_SHOULD_RETRY

PATIENCE_S = 300.0


@dataclass
class Outcome:
    """`error` is the code of the one error that a client was told, "broken" where its connection just ended, None where all went well."""

    name: str
    stream: bool
    status: int = 0
    events: list[str] = field(default_factory=list)
    error: str | None = None
    retry: str | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    ended: float = 0.0

    @property
    def clean(self) -> bool:
        """One error in the protocol's own words and nothing after it but the end."""
        if not self.stream or self.status != 200:
            return self.error is not None and self.error != "broken" and self.retry == "true"
        errors = [event for event in self.events if '"error"' in event]
        return len(errors) == 1 and self.events[-2:] == [errors[0], "[DONE]"]


async def ask(client: httpx.AsyncClient, reported: Outcome, body: dict[str, Any]) -> Outcome:
    """Whatever happens is in `told`."""
    try:
        async with client.stream("POST", "/v1/completions", json={**body, "prompt": reported.name, "stream": reported.stream}) as answer:
            reported.status, reported.retry = answer.status_code, answer.headers.get(HEADER_SHOULD_RETRY)
            if reported.stream and answer.status_code == 200:
                await _read(answer, reported)
            else:
                document = json.loads(await answer.aread())
                reported.error = document.get("error", {}).get("code")
    except httpx.HTTPError:
        reported.error = "broken"
    reported.ended = time.monotonic()
    reported.began.set()
    return reported


async def _read(answer: httpx.Response, reported: Outcome) -> None:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            reported.events.append(line.removeprefix("data: "))
            reported.began.set()
            if reported.events[-1].startswith('{"error"'):
                reported.error = json.loads(reported.events[-1])["error"]["code"]
    if reported.error is None and reported.events[-1:] != ["[DONE]"]:
        reported.error = "broken"


class MixedClients:
    """So many streaming clients, and one that waits for its whole answer. Each has a prompt of its own: its name."""

    def __init__(self, address: str, body: dict[str, Any], streams: int = 3, wholes: int = 1) -> None:
        self.outcomes = [Outcome(f"s{i}", True) for i in range(streams)] + [Outcome(f"w{i}", False) for i in range(wholes)]
        self._http = httpx.AsyncClient(base_url=f"http://{address}", timeout=PATIENCE_S, trust_env=False)
        self._tasks = [asyncio.ensure_future(ask(self._http, reported, body)) for reported in self.outcomes]

    async def streaming(self) -> None:
        """Until every stream has begun (or ended)."""
        await asyncio.wait_for(asyncio.gather(*(reported.began.wait() for reported in self.outcomes if reported.stream)), PATIENCE_S)

    async def ended(self) -> list[Outcome]:
        try:
            return list(await asyncio.wait_for(asyncio.gather(*self._tasks), PATIENCE_S))
        finally:
            await self._http.aclose()
