"""A replica that gets its adapters by orders: a front and its fetch sidecar in the test's own loop, asked by an operator and a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import httpx
import pytest
from pagoda_contracts.launch import AdaptersConfig
from pagoda_contracts.names import GRPC_SET_ADAPTERS, ROLE_OPERATOR
from pagoda_contracts.pb.daemon_pb2 import (
    ADAPTER_PHASE_LOADED,
    ADAPTER_PHASE_ON_DISK,
    Adapter,
    AdapterState,
    SetAdaptersRequest,
    SetAdaptersResponse,
)
from pagoda_daemon.api.access.caller import ROLE_ANYBODY
from pagoda_daemon.api.access.roles import METHODS
from pagoda_daemon.api.grpc import orders
from pagoda_daemon.simulated.device.worker import expected_tokens, read_digest
from pagoda_daemon.simulated.replicas.text import VOCAB
from support.servers.adapter_sidecar import adapter_sidecar
from support.servers.local_front import LocalFront, local_config, local_front

PROMPT = list(range(5, 45))
_HERE = (ADAPTER_PHASE_LOADED, ADAPTER_PHASE_ON_DISK)


class AdapterReplica:
    """Its `claims` is the folder of claims that its sidecar reads."""

    def __init__(self, front: LocalFront, channel: grpc.aio.Channel, http: httpx.AsyncClient, claims: Path) -> None:
        self.front, self.channel, self.http, self.claims = front, channel, http, claims

    async def set(self, *adapters: Adapter, generation: int = 1, epoch: int = 1, pod_uid: str = "") -> SetAdaptersResponse:
        call = self.channel.unary_unary(
            GRPC_SET_ADAPTERS,
            request_serializer=SetAdaptersRequest.SerializeToString,
            response_deserializer=SetAdaptersResponse.FromString,
        )
        wanted = SetAdaptersRequest(adapters=adapters, generation=generation, epoch=epoch, pod_uid=pod_uid)
        answer: SetAdaptersResponse = await call(wanted, timeout=300)
        return answer

    async def refused(self, *adapters: Adapter, **order: Any) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await self.set(*adapters, **order)
        return error.value.code()

    async def settled(self, *adapters: Adapter, phase: int | None = ADAPTER_PHASE_LOADED, **order: Any) -> Sequence[AdapterState]:
        """The states once every entry is in this phase, or here at all (None). The same order is given again and again, as operators do."""
        async with asyncio.timeout(300):
            while True:
                states = (await self.set(*adapters, **order)).adapters
                if all(one.phase == phase or (phase is None and one.phase in _HERE) for one in states):
                    return states
                await asyncio.sleep(0.01)

    async def phases(self, *adapters: Adapter, **order: Any) -> dict[str, int]:
        return {state.name: state.phase for state in (await self.set(*adapters, **order)).adapters}

    async def tokens(self, model: str, count: int = 12) -> tuple[int, ...]:
        body = {"model": model, "prompt": PROMPT, "max_tokens": count, "ignore_eos": True, "return_token_ids": True}
        return tuple((await self.http.post("/v1/completions", json=body)).json()["choices"][0]["token_ids"])

    def expected(self, folder: str, count: int = 12) -> tuple[int, ...]:
        return tuple(expected_tokens(PROMPT, count, VOCAB, read_digest(self.claims / "loras" / folder, None).digest))


@asynccontextmanager
async def adapter_replica(tmp_path: Path, claims: Path, max_loaded: int = 3, **changes: Any) -> AsyncIterator[AdapterReplica]:
    """`changes` are those of `local_config`."""
    roles = {GRPC_SET_ADAPTERS: frozenset((ROLE_ANYBODY, ROLE_OPERATOR))}
    async with adapter_sidecar(claims, tmp_path / "store") as port:
        config = local_config(tmp_path, adapters=AdaptersConfig(max_loaded=max_loaded, fetch_port=port), **changes)
        with patch.dict(METHODS, roles), patch.object(orders, "_FIRST_DELAY_S", 0.01):
            async with local_front(config) as front, front.channel() as channel, _client(front) as http:
                yield AdapterReplica(front, channel, http, claims)


def _client(front: LocalFront) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{front.http}", timeout=300)


def adapter(name: str, folder: str, **fields: Any) -> Adapter:
    return Adapter(name=name, uri=f"pvc://loras/{folder}", **fields)


def on_disk(name: str, folder: str, **fields: Any) -> Adapter:
    return adapter(name, folder, on_demand=True, **fields)
