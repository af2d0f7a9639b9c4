"""A recording HTTP proxy between an operator and a real API server: it carries out a plan of faults and keeps every request.

The operator speaks plain HTTP to it on loopback; the way to the server is TLS with the operator's own token.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import web
from support.kube.fault_plan import Plan, Reaction, Seen

_CARRIED = ("Authorization", "Content-Type", "Accept", "User-Agent")
_PATIENCE_S = 300
_LOOK_S = 0.02
_DOORS = 2
_GONE = 410
# As an API server begins lines of a watch that tell of no object.
_BOOKMARK, _ERROR = b'{"type":"BOOKMARK"', b'{"type":"ERROR"'
# And that do; what a plan makes of one is written otherwise.
_EVENTS = (b'{"type":"ADDED"', b'{"type":"MODIFIED"', b'{"type":"DELETED"')


@dataclass
class Entry:
    """A request as it went: when it came and when the server had answered, `code` 0 where it got no answer, `body` as sent.

    `version`: of what it wrote, as the answer has it; 0 where it has none. `life`: whose it was, by the proxy's kills before its connection
    began. `killed`: when the operator was killed for it, 0.0 where it was not."""

    at: float
    seen: Seen
    act: str
    code: int = 0
    body: bytes = b""
    query: Mapping[str, str] = field(default_factory=dict)
    done: float = 0.0
    version: int = 0
    life: int = 0
    killed: float = 0.0


class FaultProxy:
    """Lives in a thread of its own. `plan` and `kill` may be changed between two runs."""

    def __init__(self, server: str, authority: str) -> None:
        self.plan: Plan = Plan()
        # Whether there was somebody alive to kill.
        self.kill: Callable[[], bool] = lambda: False
        self.journal: list[Entry] = []
        self.requests = 0
        self.events = 0
        # How often the server said of a watch or a list that the version it should go on from is forgotten.
        self.forgotten = 0
        self._kills = 0
        self._lives: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._muted: set[int] = set()
        self._watches: dict[int, web.Request] = {}
        # Of the open watches that have told something as it came: the kind, since when each is open, and when it told the last.
        self._reported: dict[int, tuple[str, float, float]] = {}
        # Events that were not handed on as they came: the kind, and when.
        self.struck: list[tuple[str, float]] = []
        self._server = server
        self._tls = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),), daemon=True)
        self.addresses: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        return self.addresses[0]

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def begin(self, plan: Plan) -> None:
        """A new run: counts and journal begin anew, but for who holds the Lease."""
        holds = [entry for entry in self.journal if entry.seen.plural == "leases" and entry.seen.write and entry.code // 100 == 2][-1:]
        self.journal, self.requests, self.events, self.forgotten, self.plan, self.struck = holds, 0, 0, 0, plan, []

    def cut_watches(self) -> None:
        """Every open watch ends in the middle, as when its server dies."""
        for request in list(self._watches.values()):
            self._loop.call_soon_threadsafe(_hang_up, request)

    def mute_watches(self) -> None:
        """No open watch says anything any more, and none ends: the other side is gone without notice."""
        self._muted |= self._watches.keys()

    def watched(self, since: float) -> set[str]:
        """The kinds of which a watch was begun since then."""
        return {entry.seen.plural for entry in self.journal.copy() if entry.seen.watch and entry.at > since}

    def hears(self, plural: str, since: float, *, anew: bool) -> bool:
        """Whether a watch of that kind is open, begun since then where `anew`, and has told an event since then: one whose reader is gone
        is not open, and one that goes on from a version which nobody has reached tells nothing."""
        return any(
            kind == plural and reported > since and (begun > since or not anew) for kind, begun, reported in list(self._reported.values())
        )

    def listed(self, plural: str) -> bool:
        """Whether that kind was listed, over all namespaces, under the present plan's query."""
        wanted = self.plan.query()
        return any(
            entry.query == wanted and entry.seen.path.endswith(f"/{plural}") for entry in self.journal.copy() if not entry.seen.watch
        )

    def writes(self) -> list[Entry]:
        """What was asked to be written, Leases apart."""
        return [entry for entry in self.journal.copy() if entry.seen.write and entry.seen.number]

    async def _run(self) -> None:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await runner.setup()
        for _ in range(_DOORS):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.addresses = tuple(f"http://127.0.0.1:{port}" for _, port in runner.addresses)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=self._tls)) as self._upstream:
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        life = -1 if request.transport is None else self._lives.setdefault(request.transport, self._kills)
        seen = self._seen(request, dead=life < self._kills)
        reaction = self.plan.request(seen)
        entry = Entry(time.monotonic(), seen, reaction.act, body=await request.read(), life=life)
        self.journal.append(entry)
        if reaction.act in ("kill_before", "refuse"):
            if reaction.act == "kill_before":
                self._strike(entry)
            return _hang_up(request)
        if reaction.act == "error":
            entry.code = reaction.code
            return _refusal(reaction)
        if reaction.act == "silence":
            await asyncio.Event().wait()
        if late := self.plan.delay(seen):
            await asyncio.sleep(late)  # the fault itself
        sent = self._forwarded(request, reaction, entry)
        # What is on the wire stays there, though its client gives up.
        return await (asyncio.shield(self._loop.create_task(sent)) if reaction.act in ("strand", "belated") and not seen.watch else sent)

    async def _forwarded(self, request: web.Request, reaction: Reaction, entry: Entry) -> web.StreamResponse:
        if reaction.act in ("hold", "strand"):
            await self._let_go()
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._asked(request, entry) as answer:
                entry.code, entry.done = answer.status, time.monotonic()
                self.forgotten += answer.status == _GONE
                if reaction.act == "belated":
                    await self._let_go()
                watch = entry.seen.watch
                return await (self._watched(request, entry.seen, answer) if watch else self._answered(request, reaction, answer, entry))
        return _hang_up(request)  # the server is away

    def _strike(self, entry: Entry) -> None:
        if self.kill():
            entry.killed = time.monotonic()
            self._kills += 1

    async def _let_go(self) -> None:
        while self.plan.holds():
            await asyncio.sleep(_LOOK_S)

    def _seen(self, request: web.Request, *, dead: bool) -> Seen:
        """`dead`: what a process that was killed had on the wire still arrives, and is nobody's next request."""
        watch = "watch" in request.query
        seen = Seen(0, request.method, request.path, watch, self._door(request))
        if watch or seen.plural == "leases":
            return seen
        if dead:
            return seen._replace(number=-1)
        self.requests += 1
        return seen._replace(number=self.requests)

    def _door(self, request: web.Request) -> int:
        port = request.transport.get_extra_info("sockname")[1] if request.transport is not None else 0
        return next((number for number, address in enumerate(self.addresses) if address.endswith(f":{port}")), 0)

    def _asked(self, request: web.Request, entry: Entry) -> Any:
        headers = {name: request.headers[name] for name in _CARRIED if name in request.headers}
        query = dict(request.query)
        if request.method == "GET" and not entry.seen.watch and lists(entry.seen):
            entry.query = self.plan.query()
            query |= entry.query
        timeout = aiohttp.ClientTimeout(total=None if entry.seen.watch else _PATIENCE_S)
        url = self._server + request.path
        return self._upstream.request(request.method, url, params=query, headers=headers, data=entry.body or None, timeout=timeout)

    async def _answered(self, request: web.Request, reaction: Reaction, answer: aiohttp.ClientResponse, entry: Entry) -> web.StreamResponse:
        body = await answer.read()
        if entry.seen.write and answer.ok:
            entry.version = int(json.loads(body).get("metadata", {}).get("resourceVersion") or 0)
        match reaction.act:
            case "kill_after":
                self._strike(entry)
                return _hang_up(request)
            case "lose":
                return _hang_up(request)
            case "commit_then_500":
                return _refusal(Reaction("error", 500))
        response = web.Response(status=answer.status, body=body, content_type=answer.content_type)
        if reaction.act == "kill_between":
            await response.prepare(request)
            await response.write_eof()
            self._strike(entry)
        return response

    async def _watched(self, request: web.Request, seen: Seen, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
        await response.prepare(request)
        begun = time.monotonic()
        self._watches[id(request)] = request
        try:
            async for part in self._lines(seen, answer):
                if id(request) in self._muted:
                    await asyncio.Event().wait()
                while self.plan.stuck(seen):
                    await asyncio.sleep(_LOOK_S)
                if part == "end":
                    return _hang_up(request)
                await response.write(part)
                if part.startswith(_EVENTS):
                    self._reported[id(request)] = (seen.plural, begun, time.monotonic())
        finally:
            del self._watches[id(request)]
            self._reported.pop(id(request), None)
            self._muted.discard(id(request))
        return response

    async def _lines(self, seen: Seen, answer: aiohttp.ClientResponse) -> AsyncIterator[bytes | Literal["end"]]:
        buffer = b""
        async for chunk in answer.content.iter_any():
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                if late := self.plan.held(seen):
                    await asyncio.sleep(late)  # the fault itself
                for part in self._line(seen, line + b"\n"):
                    yield part

    def _line(self, seen: Seen, line: bytes) -> Any:
        if self.plan.mute(seen):
            return []
        if line.startswith(_BOOKMARK):
            return [line]
        self.events += 1
        self.forgotten += line.startswith(_ERROR) and b'"code":410' in line
        handed = self.plan.lines(seen, self.events, line)
        if handed != [line]:
            self.struck.append((seen.plural, time.monotonic()))
        return handed


def lists(seen: Seen) -> bool:
    """Whether it reads a whole kind, or a namespace's or a selector's part of it."""
    return seen.path.rstrip("/").endswith(f"/{seen.plural}")


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # nobody reads it


def _refusal(reaction: Reaction) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": reaction.code, "message": "planted"}
    headers = {"Retry-After": str(reaction.retry_after)} if reaction.retry_after else {}
    return web.json_response(status, status=reaction.code, headers=headers)
