"""Sends orders to replicas' daemons over gRPC, and shows them the operator's own token. Called by `reconcile`; decides nothing.

Every order has the leader's epoch. A daemon that has obeyed a later one refuses, which ends this process, since another one leads. An order
also names its pod: if another pod has the address by now, the answer counts as silence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

import grpc
import structlog
from pagoda_contracts.bearer import AUTHORIZATION, first
from pagoda_contracts.names import GRPC_SET_STATE, PORT_DAEMON_GRPC
from pagoda_contracts.pb.daemon_pb2 import TARGET_DRAINING, TARGET_SERVING, Phase, SetStateRequest, SetStateResponse

from pagoda_operator.api.errors import SettingsError, Superseded
from pagoda_operator.api.pods import Answer, DaemonState, Order

# A daemon answers from its event loop in milliseconds; one that takes longer gets the order again at the next reconcile.
TIMEOUT_S: Final = 2.0
REFUSALS: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
Metadata = tuple[tuple[str, str], ...]


class OwnToken:
    """The ServiceAccount token that the operator shows to replicas and gateways; SettingsError at the start if the file has none.

    The file is read for every call: calls are few, and kubelet renews it at any time.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        try:
            self._shown = first(path.read_text().strip(), clock())
        except (OSError, ValueError) as error:
            raise SettingsError(f"{path}: {error}") from error

    def metadata(self) -> Metadata:
        """For a gRPC call."""
        self._refresh()
        return ((AUTHORIZATION, self._shown.used.header),)

    def newest_key(self) -> str:
        """Id of the key that signed the newest token: the cluster signs with it from now on."""
        self._refresh()
        return self._shown.found.key_id

    def _refresh(self) -> None:
        try:
            self._shown = self._shown.seen(self._path.read_text().strip(), self._clock())
        except (OSError, ValueError) as error:
            structlog.get_logger().warning("own_token_unreadable", file=str(self._path), error=type(error).__name__)


class Addressed(Protocol):
    """An order for one pod."""

    @property
    def uid(self) -> str: ...
    @property
    def address(self) -> str: ...


_Order = TypeVar("_Order", bound=Addressed)
_Given = TypeVar("_Given")


async def give_all(
    orders: Sequence[_Order], give: Callable[[_Order, Metadata], Awaitable[_Given]], token: OwnToken | None
) -> dict[str, _Given]:
    """Gives all orders at once; returns what came of each by the pod's uid."""
    metadata = token.metadata() if orders and token is not None else ()
    given = await asyncio.gather(*(give(order, metadata) for order in orders))
    return {order.uid: one for order, one in zip(orders, given, strict=True)}


def target(pod: Addressed, port: int) -> str:
    """Where a pod's port is, as gRPC wants it."""
    return f"[{pod.address}]:{port}" if ":" in pod.address else f"{pod.address}:{port}"


def channel_to(order: Addressed, port: int) -> grpc.aio.Channel:
    """A connection to the pod, past any proxy of ours."""
    return grpc.aio.insecure_channel(target(order, port), options=(("grpc.enable_http_proxy", 0),))


class Daemons:
    """Makes one short connection per order, since a replica gets few. `epoch` is the leader's; `token` is ours, None if replicas do not
    check callers."""

    def __init__(self, epoch: Callable[[], int], token: OwnToken | None = None, port: int = PORT_DAEMON_GRPC) -> None:
        self._epoch, self._token, self._port = epoch, token, port

    async def give(self, orders: Sequence[Order]) -> dict[str, Answer]:
        """Sends all orders at once; returns answers by the pod's uid. Superseded if a daemon has obeyed a later leader."""
        return await give_all(orders, self._give, self._token)

    async def _give(self, order: Order, metadata: Metadata) -> Answer:
        async with channel_to(order, self._port) as channel:
            call = _Call(channel, metadata, self._epoch(), order.uid)
            try:
                return _answer(await call.set_state(order.deadline_ms, order.left_ms))
            except grpc.aio.AioRpcError as error:
                return await self._refused(call, order, error)

    async def _refused(self, call: _Call, order: Order, error: grpc.aio.AioRpcError) -> Answer:
        log = structlog.get_logger().bind(pod=order.pod, code=error.code().name, error=error.details())
        if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
            refused = error.code() in REFUSALS
            log.warning("order_refused" if refused else "daemon_silent")
            return Answer(DaemonState.REFUSED if refused else DaemonState.SILENT)
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
        """Drain until the deadline (0: as long as the daemon itself allows), or serve (None). Older daemons do not know `remaining_ms`."""
        target = TARGET_SERVING if deadline_ms is None else TARGET_DRAINING
        request = SetStateRequest(target=target, epoch=self.epoch, pod_uid=self._uid)
        request.deadline_unix_ms, request.remaining_ms = deadline_ms or 0, left_ms
        answer: SetStateResponse = await self._method(request, metadata=self._metadata, timeout=TIMEOUT_S)
        return answer

    async def ends(self) -> bool:
        """Whether SERVING was refused because the daemon got SIGTERM, not because our epoch is over: only then may it still be ordered to
        drain, which it does already."""
        try:
            await self.set_state(0)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.FAILED_PRECONDITION
        return True


def _answer(response: SetStateResponse) -> Answer:
    draining = response.phase in (Phase.PHASE_DRAINING, Phase.PHASE_STOPPED)
    return Answer(DaemonState.DRAINING if draining else DaemonState.SERVING, response.in_flight)
