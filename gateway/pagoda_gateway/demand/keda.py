"""Answers KEDA as an external scaler (`externalscaler.ExternalScaler`, KEDA 2.21), so that it needs no Prometheus. Served by server.py.

KEDA cannot show a ServiceAccount token, so everybody who reaches the port may ask; it is off unless the settings turn it on. It asks one
gateway, which answers for all (peers.py). external_scaler.py decides what is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio
from pagoda_contracts.names import GRPC_KEDA, STATE_HEARTBEAT_MS
from pagoda_contracts.pb import externalscaler_pb2 as pb

from pagoda_gateway.demand.external_scaler import Load, Trigger, TriggerError, parse_trigger, values
from pagoda_gateway.demand.messages import DemandMessages

_BEAT_S: Final = STATE_HEARTBEAT_MS / 1000
_STREAM: Final = grpc.unary_stream_rpc_method_handler
_UNARY: Final = grpc.unary_unary_rpc_method_handler


class ExternalScaler:
    """`held_elsewhere`: how many requests the other gateways hold for a service."""

    def __init__(self, messages: DemandMessages, held_elsewhere: Callable[[str], int]) -> None:
        self._messages, self._held_elsewhere = messages, held_elsewhere

    def handler(self) -> grpc.GenericRpcHandler:
        """Returns the handler of all methods."""
        ref, asked = pb.ScaledObjectRef.FromString, pb.GetMetricsRequest.FromString
        active, spec = pb.IsActiveResponse.SerializeToString, pb.GetMetricSpecResponse.SerializeToString
        methods = {
            "IsActive": _UNARY(self._is_active, ref, active),
            "StreamIsActive": _STREAM(self._stream_is_active, ref, active),
            "GetMetricSpec": _UNARY(self._metric_spec, ref, spec),
            "StreamMetricSpec": _STREAM(self._stream_metric_spec, ref, spec),
            "GetMetrics": _UNARY(self._metrics, asked, pb.GetMetricsResponse.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(GRPC_KEDA, methods)

    async def _is_active(self, ref: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        load = await self._load(await _parse(ref, context), context)
        if not load.requests:
            await _must_be_heard(load, context)
        return pb.IsActiveResponse(result=load.requests > 0)

    async def _stream_is_active(self, ref: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        """At once, and whenever it changes: a held request starts a service at 0 without waiting for KEDA's next poll."""
        trigger = await _parse(ref, context)
        changed, last = self._messages.watch(), None
        try:
            while True:
                changed.clear()
                load = await self._load(trigger, context)
                active = load.requests > 0
                if active != last and (active or not load.unheard()):
                    yield pb.IsActiveResponse(result=active)
                    last = active
                await self._messages.changed_within(changed, _BEAT_S)
        finally:
            self._messages.unwatch(changed)

    async def _metric_spec(self, ref: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        return _spec(await _parse(ref, context))

    async def _stream_metric_spec(self, ref: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """Once: the targets stand in the trigger, and KEDA opens a new stream when that changes. It must not end, or KEDA asks again."""
        yield _spec(await _parse(ref, context))
        await asyncio.get_running_loop().create_future()

    async def _metrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        trigger = await _parse(request.scaledObjectRef, context)
        load = await self._load(trigger, context)
        await _must_be_heard(load, context)
        try:
            found = values(trigger, load, request.metricName)
        except TriggerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        rows = [pb.MetricValue(metricName=name, metricValue=round(value), metricValueFloat=value) for name, value in found.items()]
        return pb.GetMetricsResponse(metricValues=rows)

    async def _load(self, trigger: Trigger, context: Any) -> Load:
        demand = self._messages.of(trigger.service)
        if demand is not None:
            return Load(demand, self._held_elsewhere(trigger.service))
        if not self._messages.complete:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the gateway has not listed all services yet")
        return await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no InferenceService {trigger.service}")  # type: ignore[no-any-return]


async def _must_be_heard(load: Load, context: Any) -> None:
    """KEDA takes an error for "unknown": it keeps the replicas, or uses the ScaledObject's fallback. Zero would remove them."""
    if load.unheard():
        service = f"{load.demand.namespace}/{load.demand.name}"
        await context.abort(grpc.StatusCode.UNAVAILABLE, f"no replica of {service} has reported its state within 3 s")


async def _parse(ref: pb.ScaledObjectRef, context: Any) -> Trigger:
    try:
        return parse_trigger(ref.namespace, ref.scalerMetadata)
    except TriggerError as error:
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))  # type: ignore[no-any-return]


def _spec(trigger: Trigger) -> pb.GetMetricSpecResponse:
    rows = [
        pb.MetricSpec(metricName=name, targetSize=max(1, round(target)), targetSizeFloat=target) for name, target in trigger.targets.items()
    ]
    return pb.GetMetricSpecResponse(metricSpecs=rows)
