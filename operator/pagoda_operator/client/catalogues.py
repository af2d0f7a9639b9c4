"""Sends replicas the catalogue of their adapters over gRPC. Called by `run/adapters.py`; decides nothing.

As with `daemons.py`: every order has the leader's epoch and names its pod, and a daemon that has obeyed a later leader ends this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
import structlog
from pagoda_contracts.names import GRPC_SET_ADAPTERS, PORT_DAEMON_GRPC
from pagoda_contracts.pb.daemon_pb2 import (
    ADAPTER_PHASE_FAILED,
    ADAPTER_PHASE_FETCHING,
    ADAPTER_PHASE_LOADED,
    ADAPTER_PHASE_ON_DISK,
    Adapter,
    AdapterPhase,
    AdapterState,
    SetAdaptersRequest,
    SetAdaptersResponse,
)

from pagoda_operator.api.adapters import CatalogueOrder, Phase, Progress
from pagoda_operator.api.errors import Superseded
from pagoda_operator.client.daemons import REFUSALS, TIMEOUT_S, Metadata, OwnToken, channel_to, give_all

_PHASES: Final[dict[AdapterPhase, Phase]] = {
    ADAPTER_PHASE_FETCHING: Phase.FETCHING,
    ADAPTER_PHASE_ON_DISK: Phase.ON_DISK,
    ADAPTER_PHASE_LOADED: Phase.LOADED,
    ADAPTER_PHASE_FAILED: Phase.FAILED,
}

Found = dict[str, Progress] | None


class Catalogues:
    """One short connection per order."""

    def __init__(self, epoch: Callable[[], int], token: OwnToken | None = None, port: int = PORT_DAEMON_GRPC) -> None:
        self._epoch, self._token, self._port = epoch, token, port

    async def give(self, orders: Sequence[CatalogueOrder]) -> dict[str, Found]:
        """Sends all orders at once. Returns by the pod's uid how far each adapter is, by name; None if the replica did not answer."""
        return await give_all(orders, self._give, self._token)

    async def _give(self, order: CatalogueOrder, metadata: Metadata) -> Found:
        async with channel_to(order, self._port) as channel:
            method: Any = channel.unary_unary(
                GRPC_SET_ADAPTERS,
                request_serializer=SetAdaptersRequest.SerializeToString,
                response_deserializer=SetAdaptersResponse.FromString,
            )
            try:
                answer: SetAdaptersResponse = await method(_request(order, self._epoch()), metadata=metadata, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return _refused(order, error)
        return {state.name: _progress(state) for state in answer.adapters}


def _refused(order: CatalogueOrder, error: grpc.aio.AioRpcError) -> Found:
    log = structlog.get_logger().bind(pod=order.pod, code=error.code().name, error=error.details())
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        log.error("superseded")
        raise Superseded(f"{order.pod}: {error.details()}")
    if error.code() not in (*REFUSALS, grpc.StatusCode.INVALID_ARGUMENT):
        log.warning("daemon_silent")
        return None
    log.warning("catalogue_refused")
    why = f"the replica refuses the catalogue: {error.details()}"
    return {entry.name: Progress(Phase.FAILED, reason=why) for entry in order.entries}


def _request(order: CatalogueOrder, epoch: int) -> SetAdaptersRequest:
    adapters = (
        Adapter(name=one.name, digest=one.digest, uri=one.uri, credential=one.credential, pinned=one.pinned, on_demand=one.on_demand)
        for one in order.entries
    )
    return SetAdaptersRequest(adapters=adapters, generation=order.generation, epoch=epoch, pod_uid=order.uid)


def _progress(state: AdapterState) -> Progress:
    return Progress(_PHASES.get(state.phase, Phase.PENDING), state.digest, state.reason)
