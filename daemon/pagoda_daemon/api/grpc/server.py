"""The gRPC server's limits, and the one generic handler that lets callers in. Used by `front.py`.

A method is served if `access.METHODS` and a `Method` name it; a caller without a role for it is refused before a byte of its message is
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError, Message

from pagoda_daemon.api.access.auth import Guard
from pagoda_daemon.api.access.caller import Principal
from pagoda_daemon.api.access.roles import METHODS, NOBODY
from pagoda_daemon.core.errors import (
    BadRequest,
    DaemonError,
    DeadlineExceeded,
    Draining,
    EngineDied,
    Forbidden,
    ModelNotFound,
    NotBuilt,
    NotReady,
    Overloaded,
    StaleCatalogue,
    StaleOrder,
    Unauthenticated,
    WrongReplica,
)

log = structlog.get_logger()

# A prompt of a million tokens is 3 MB on the wire; what is larger is refused by its length prefix, unread.
_MAX_MESSAGE: Final = 8 * 2**20
_MAX_METADATA: Final = 16 * 1024
# One connection per gateway carries all its streams; a thousand gateways do not fit one replica.
_MAX_STREAMS: Final = 2048
_MAX_CALLS: Final = 4096
_FIRST_MESSAGE_S: Final = 10.0
_STALLED_S: Final = 30.0  # in which a caller reads nothing, as of an HTTP client; his place and his rows are let go then
OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a port in use is an error
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.max_metadata_size", _MAX_METADATA),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA),
    ("grpc.max_concurrent_streams", _MAX_STREAMS),
    # A peer that vanished without a word is noticed within 40 s, and one that pings more than every 10 s is sent away.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 3),
)


class Context(Protocol):
    """What methods use of grpc.aio's ServicerContext, which has no types."""

    async def abort(self, code: grpc.StatusCode, details: str) -> None: ...

    async def read(self) -> Any: ...

    async def write(self, message: Message) -> None: ...

    def time_remaining(self) -> float | None: ...


Unary = Callable[[Principal, Any, Context], Awaitable[Message]]
Streaming = Callable[[Principal, Any, Context], AsyncGenerator[Message]]


@dataclass(frozen=True)
class Method:
    """One method: its request's type, and what answers it, once or with a stream."""

    method: str
    request: type[Message]
    unary: Unary | None = None
    stream: Streaming | None = None


def server() -> Any:
    """A server with its limits, without methods, not yet started."""
    return grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=_MAX_CALLS)


async def start(made: Any, methods: Methods, address: str) -> int:
    """The port; RuntimeError where it is taken."""
    made.add_generic_rpc_handlers((methods,))
    port: int = made.add_insecure_port(address)
    await made.start()
    return port


class Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Full method name → method; any other is unimplemented."""

    def __init__(self, methods: Iterable[Method], guard: Guard) -> None:
        self._methods: Mapping[str, Method] = {method.method: method for method in methods}
        self._guard = guard

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = self._methods.get(details.method)
        if method is None:
            return None
        try:
            principal = self._guard.allow(METHODS.get(method.method, NOBODY), _authorization(details.invocation_metadata))
        except DaemonError as error:
            return _refusing(error)
        return _serving(method, principal)


def _authorization(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    found = next((value for name, value in metadata or () if name == "authorization"), None)
    return found if isinstance(found, str) else None


def _refusing(error: DaemonError) -> Any:
    """Of any kind of method: it reads nothing, so that nothing is parsed for an unknown caller."""

    async def refuse(_requests: Any, context: Context) -> None:
        await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _serving(method: Method, principal: Principal) -> Any:
    """As a stream of requests whatever the method's kind: so the wait for the first one has a limit, also if the caller never sends it."""

    async def serve(_requests: Any, context: Context) -> None:
        try:
            request = _parsed(method.request, await _first(context))
            if method.unary is not None:
                await _write(context, await method.unary(principal, request, context))
            elif method.stream is not None:
                async with aclosing(method.stream(principal, request, context)) as messages:
                    async for message in messages:
                        await _write(context, message)
        except DaemonError as error:
            await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(serve, None, _encoded)


async def _first(context: Context) -> Any:
    try:
        async with asyncio.timeout(_FIRST_MESSAGE_S):
            request = await context.read()
    except TimeoutError:
        raise BadRequest(f"no message came in {_FIRST_MESSAGE_S:.0f} s") from None
    if request is grpc.aio.EOF:
        raise BadRequest("the call ended without a message")
    return request


def _parsed(kind: type[Message], message: bytes) -> Message:
    """Here, because what the library raises for it ends the call as a fault of ours."""
    try:
        return kind.FromString(message)
    except DecodeError:
        raise BadRequest(f"the message is not a {kind.DESCRIPTOR.name}") from None


async def _write(context: Context, message: Message) -> None:
    """Done once the connection's window has room for it, which a caller who does not read never gives."""
    try:
        async with asyncio.timeout(_STALLED_S):
            await context.write(message)
    except TimeoutError:
        log.warning("slow_caller_cut", stalled_s=_STALLED_S)
        raise Overloaded(f"the answer was not read for {_STALLED_S:g} s") from None


def _encoded(message: Message) -> bytes:
    return message.SerializeToString()


_CODES: Final[Mapping[type[DaemonError], grpc.StatusCode]] = {
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Draining: grpc.StatusCode.UNAVAILABLE,
    NotReady: grpc.StatusCode.UNAVAILABLE,
    EngineDied: grpc.StatusCode.UNAVAILABLE,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StaleOrder: grpc.StatusCode.FAILED_PRECONDITION,
    StaleCatalogue: grpc.StatusCode.ABORTED,
    WrongReplica: grpc.StatusCode.NOT_FOUND,
    NotBuilt: grpc.StatusCode.UNIMPLEMENTED,
}


async def abort(context: Context, error: DaemonError) -> None:
    """Ends the call with the error's status; raises what grpc.aio raises."""
    code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), grpc.StatusCode.INTERNAL)
    await context.abort(code, str(error))


def check_pod(asked: str, own: str) -> None:
    """WrongReplica for an order to the pod that had this address before."""
    if asked and own and asked != own:
        raise WrongReplica(f"the order is for pod {asked}, this is {own}")
