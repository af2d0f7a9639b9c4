"""Sends orders to replicas' daemons over gRPC: the only place that connects to them. Called by `reconcile`; decides nothing.

Every order carries the leader's epoch. A daemon that has obeyed a later one refuses, which ends this process, since another one leads. An
order also names its pod: if another pod has the address by now, the answer counts as silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import grpc
import structlog
from pagoda_contracts.names import GRPC_SET_STATE, PORT_DAEMON_GRPC
from pagoda_contracts.pb.daemon_pb2 import TARGET_DRAINING, TARGET_SERVING, Phase, SetStateRequest, SetStateResponse

from pagoda_operator.api.errors import Superseded
from pagoda_operator.api.pods import Answer, DaemonState, Order
from pagoda_operator.talk.tokens import Metadata, OwnToken

# A daemon answers from its event loop in milliseconds; one that takes longer gets the order again at the next reconcile.
TIMEOUT_S: Final = 2.0
_REFUSALS: Final = {
    grpc.StatusCode.UNAUTHENTICATED: DaemonState.REFUSED,
    grpc.StatusCode.PERMISSION_DENIED: DaemonState.REFUSED,
    grpc.StatusCode.UNIMPLEMENTED: DaemonState.REFUSED,
}
_OPTIONS: Final = (("grpc.enable_http_proxy", 0),)


class Daemons:
    """One short connection per order, since a replica gets a few orders in its life. `epoch` is the leader's; `token` is ours, None if
    replicas do not check callers."""

    def __init__(self, epoch: Callable[[], int], token: OwnToken | None = None, port: int = PORT_DAEMON_GRPC) -> None:
        self._epoch, self._token, self._port = epoch, token, port

    async def give(self, orders: Sequence[Order]) -> dict[str, Answer]:
        """All of them at once; answers by the pod's uid. Superseded where a daemon has obeyed a later leader."""
        if not orders:
            return {}
        metadata = self._token.metadata() if self._token is not None else ()
        answers = await asyncio.gather(*(self._give(order, metadata) for order in orders))
        return {order.uid: answer for order, answer in zip(orders, answers, strict=True)}

    async def _give(self, order: Order, metadata: Metadata) -> Answer:
        host = f"[{order.address}]" if ":" in order.address else order.address
        async with grpc.aio.insecure_channel(f"{host}:{self._port}", options=_OPTIONS) as channel:
            call = _Call(channel, metadata, self._epoch(), order.uid)
            try:
                return _answer(await call.set_state(order.deadline_ms, order.left_ms))
            except grpc.aio.AioRpcError as error:
                return await self._refused(call, order, error)

    async def _refused(self, call: _Call, order: Order, error: grpc.aio.AioRpcError) -> Answer:
        log = structlog.get_logger().bind(pod=order.pod, code=error.code().name, error=error.details())
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            state = _REFUSALS.get(error.code(), DaemonState.SILENT)
            log.warning("order_refused" if state is DaemonState.REFUSED else "daemon_silent")
            return Answer(state)
        if order.deadline_ms is None and await call.ends():
            return Answer(DaemonState.ENDING)
        log.error("superseded", epoch=call.epoch)
        raise Superseded(f"{order.pod}: {error.details()}")


class _Call:
    """Orders over one connection."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata, epoch: int, uid: str) -> None:
        self.epoch, self._uid = epoch, uid
        self._metadata = metadata
        self._method = channel.unary_unary(
            GRPC_SET_STATE, request_serializer=SetStateRequest.SerializeToString, response_deserializer=SetStateResponse.FromString
        )

    async def set_state(self, deadline_ms: int | None, left_ms: int = 0) -> SetStateResponse:
        """Drain until the deadline (0: as long as the daemon itself allows), or serve. A daemon of before `remaining_ms` goes by ours."""
        target = TARGET_SERVING if deadline_ms is None else TARGET_DRAINING
        request = SetStateRequest(target=target, epoch=self.epoch, pod_uid=self._uid)
        request.deadline_unix_ms, request.remaining_ms = deadline_ms or 0, left_ms
        answer: SetStateResponse = await self._method(request, metadata=self._metadata, timeout=TIMEOUT_S)
        return answer

    async def ends(self) -> bool:
        """Whether SERVING was refused because SIGTERM was heard, not because our epoch is over: only then may it still be told to drain,
        which it does already."""
        try:
            await self.set_state(0)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.FAILED_PRECONDITION
        return True


def _answer(response: SetStateResponse) -> Answer:
    draining = response.phase in (Phase.PHASE_DRAINING, Phase.PHASE_STOPPED)
    return Answer(DaemonState.DRAINING if draining else DaemonState.SERVING, response.in_flight)
