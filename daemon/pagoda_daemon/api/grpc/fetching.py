"""Sidecar: asks this pod's fetch sidecar for an adapter's files, over loopback. Called by `orders.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import grpc
import grpc.aio
from pagoda_contracts.names import GRPC_FETCH_FETCH
from pagoda_contracts.pb.fetch_pb2 import FETCH_PHASE_DONE, FETCH_PHASE_FAILED, FetchProgress, FetchRequest

from pagoda_daemon.core.errors import AdapterRejected

_OPTIONS: Final = (("grpc.enable_http_proxy", 0),)


class Entry(NamedTuple):
    """One adapter as the operator wants it. Without a digest, any content at the address will do. `on_demand`: a request loads it, and
    evicts it again for another one, unless it is `pinned`."""

    name: str
    uri: str
    digest: str = ""
    credential: str = ""
    on_demand: bool = False
    pinned: bool = False


class Fetched(NamedTuple):
    """Where the files are, and the digest of all of them."""

    path: Path
    digest: str


class FetchFailed(AdapterRejected):
    """The sidecar could not bring the files; the message is its sentence."""


class Fetch(Protocol):
    """What brings the files. `begun` is called once bytes are awaited."""

    async def __call__(self, entry: Entry, begun: Callable[[], None]) -> Fetched: ...


class Sidecar:
    """One call for each adapter. The sidecar joins equal orders, so a call may be repeated at any time."""

    def __init__(self, port: int) -> None:
        self._address = f"127.0.0.1:{port}"

    async def __call__(self, entry: Entry, begun: Callable[[], None]) -> Fetched:
        """The finished files; FetchFailed says why there are none."""
        async with grpc.aio.insecure_channel(self._address, options=_OPTIONS) as channel:
            call = channel.unary_stream(
                GRPC_FETCH_FETCH, request_serializer=FetchRequest.SerializeToString, response_deserializer=FetchProgress.FromString
            )
            request = FetchRequest(uri=entry.uri, digest=entry.digest, credential=entry.credential)
            try:
                return await _last(call(request), begun)
            except grpc.aio.AioRpcError as error:
                raise FetchFailed(f"the fetch sidecar did not answer: {error.code().name}") from error


async def _last(stream: Any, begun: Callable[[], None]) -> Fetched:
    async for progress in stream:
        begun()
        if progress.phase == FETCH_PHASE_FAILED:
            raise FetchFailed(progress.error)
        if progress.phase == FETCH_PHASE_DONE:
            return Fetched(Path(progress.path), progress.digest)
    raise FetchFailed("the fetch sidecar ended the call before the files were complete")
