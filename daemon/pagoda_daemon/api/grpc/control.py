"""SetState: how the operator steers this replica, and SIGTERM's first half. Made by `front.py`.

Decides by `drain.py`; what it does is to enter a phase, and at the deadline to end what still runs. Orders may be repeated: the answer
tells where the replica is, however it got there.

A drain is announced to the watchers before requests are refused. A gateway behind Envoy cannot send a request to another replica once it
has chosen one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from pagoda_contracts.names import GRPC_SET_STATE
from pagoda_contracts.pb.daemon_pb2 import TARGET_DRAINING, TARGET_SERVING, Phase, SetStateRequest, SetStateResponse

from pagoda_daemon.api.access.caller import Principal
from pagoda_daemon.api.grpc.server import Context, Method, check_pod
from pagoda_daemon.api.grpc.watch import StateFeed
from pagoda_daemon.core.errors import BadRequest, Draining
from pagoda_daemon.health.drain import Drain, Until
from pagoda_daemon.health.replica import Replica

log = structlog.get_logger()

_CUT_AGAIN_S: Final = 1.0
# Requests are taken no longer than this after a drain began, whichever watcher does not read.
_ANNOUNCED_WITHIN_S: Final = 1.0
CUT: Final = "this replica had to stop before the request was finished"


class Control:
    """`fail_streams` ends every running request; `feed` tells the watchers; `uid` is our pod's, empty where it is not known."""

    def __init__(
        self,
        replica: Replica,
        timeout_s: float,
        fail_streams: Callable[[Draining], None],
        feed: StateFeed,
        *,
        uid: str = "",
    ) -> None:
        self._replica = replica
        self._timeout_ms = int(timeout_s * 1000)
        self._fail_streams = fail_streams
        self._feed = feed
        self._uid = uid
        self._timer: asyncio.TimerHandle | None = None
        self._announcement: asyncio.Task[None] | None = None

    def method(self) -> Method:
        return Method(GRPC_SET_STATE, SetStateRequest, unary=self.set_state)

    async def set_state(self, caller: Principal, request: SetStateRequest, _context: Context) -> SetStateResponse:
        """The gRPC method."""
        check_pod(request.pod_uid, self._uid)
        before = self._replica.drain
        if request.target == TARGET_DRAINING:
            self._enter(before.begin(self._until(request.remaining_ms, request.deadline_unix_ms), request.epoch))
        elif request.target == TARGET_SERVING:
            self._enter(before.turn_back(request.epoch))
        else:
            raise BadRequest(f"target must be SERVING or DRAINING, got {request.target}", "target")
        after = self._replica.drain
        if after.draining != before.draining:
            log.info("ordered", by=caller.name, draining=after.draining, epoch=after.epoch, in_flight=self._replica.in_flight)
        return SetStateResponse(
            phase=self._replica.phase, in_flight=self._replica.in_flight, deadline_unix_ms=after.until.unix_ms, epoch=after.epoch
        )

    def end(self) -> None:
        """SIGTERM: drains for good. To end what runs at the deadline is the caller's business from here on."""
        self._enter(self._replica.drain.end(self._until()))
        self._cancel()

    async def announced(self) -> None:
        """Returns when a replica that drains refuses requests; it does at once if this is cancelled."""
        if self._announcement is not None:
            try:
                await asyncio.wait({self._announcement})
            finally:
                self._refuse()

    def _refuse(self) -> None:
        self._replica.announcing = False
        if self._announcement is not None:
            self._announcement.cancel()

    def left_s(self) -> float:
        """Until the deadline."""
        return self._replica.drain.left_s(time.monotonic() * 1000)

    def _until(self, remaining_ms: int = 0, deadline_unix_ms: int = 0) -> Until:
        """From now on, as long as is said. An operator of before `remaining_ms` names a time of its own clock, which is read by ours."""
        now, wall = int(time.monotonic() * 1000), int(time.time() * 1000)
        left = deadline_unix_ms - wall if deadline_unix_ms > 0 else self._timeout_ms
        left = remaining_ms or left
        return Until(now + left, wall + left)

    def _enter(self, drain: Drain) -> None:
        before, self._replica.drain = self._replica.drain, drain
        if drain.draining == before.draining:
            return
        if drain.draining:
            self._replica.announcing = self._replica.accepting
            self._replica.enter(Phase.PHASE_DRAINING)
            self._announcement = asyncio.ensure_future(self._tell())
            self._timer = asyncio.get_running_loop().call_later(self.left_s(), self._cut)
        else:
            self._cancel()
            self._refuse()
            self._replica.enter(Phase.PHASE_READY if self._replica.limits is not None else Phase.PHASE_LOADING)

    async def _tell(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_ANNOUNCED_WITHIN_S, self.left_s())):
                await self._feed.announce(Phase.PHASE_DRAINING)
        self._replica.announcing = False

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut(self) -> None:
        """Again until nothing runs: what was still being read or rendered at the deadline reaches the engine after it."""
        if self._replica.in_flight:
            log.warning("drain_cut", in_flight=self._replica.in_flight)
            self._fail_streams(Draining(CUT))
            self._timer = asyncio.get_running_loop().call_later(_CUT_AGAIN_S, self._cut)
