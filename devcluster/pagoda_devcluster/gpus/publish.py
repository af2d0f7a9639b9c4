"""Keeps a kubelet node's GFD labels and its ResourceSlice there: a new node has neither, and a kubelet that starts wipes the slice."""

import asyncio
from collections.abc import Awaitable, Callable

import httpx
import structlog

from pagoda_devcluster.client.watching import RETRY_SECONDS, AsyncApi, Event
from pagoda_devcluster.cluster.errors import ApiError
from pagoda_devcluster.gpus import dra
from pagoda_devcluster.gpus.labels import labels_of
from pagoda_devcluster.gpus.layout import NodeClass

NODES = "/api/v1/nodes"
SLICES = f"{dra.PATH}/resourceslices"
log = structlog.get_logger()


class Publisher:
    """Of one node."""

    def __init__(self, api: AsyncApi, played: NodeClass, node: str) -> None:
        self._api, self._played, self._node = api, played, node
        self._uid = ""
        self._known = asyncio.Event()

    async def keep_labels(self) -> None:
        async for event in self._api.follow(NODES, fieldSelector=f"metadata.name={self._node}"):
            for found in event.objects if event.kind != "DELETED" else []:
                self._uid = found["metadata"]["uid"]
                self._known.set()
                if not labels_of(self._played).items() <= found["metadata"].get("labels", {}).items():
                    await until_done(self._label)

    async def keep_slice(self) -> None:
        await self._known.wait()
        placed = dra.resource_slice(self._played, self._node, self._uid)
        if placed is None:
            return
        async for event in self._api.follow(SLICES, fieldSelector=f"metadata.name={placed[1]['metadata']['name']}"):
            if missing(event):
                await until_done(self._slice)

    async def _label(self) -> None:
        await self._api.merge(f"{NODES}/{self._node}", {"metadata": {"labels": labels_of(self._played)}})
        log.info("labelled", node=self._node)

    async def _slice(self) -> None:
        if placed := dra.resource_slice(self._played, self._node, self._uid):
            await self._api.apply(*placed)
            log.info("slice_published", node=self._node)


async def until_done(write: Callable[[], Awaitable[None]]) -> None:
    """Nothing else would bring a refused write again: an object that does not change has no event."""
    while True:
        try:
            return await write()
        except (ApiError, httpx.HTTPError) as error:
            log.error("not_published", error=str(error) or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)


def missing(event: Event) -> bool:
    return event.kind == "DELETED" or (event.kind == "LISTED" and not event.objects)
