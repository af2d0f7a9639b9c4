"""Pods of fake nodes that answer: which pods are replicas, what their fronts should do (both pure), and the client that has it done.

Used by `kubelet.py` where `up` was asked to `--serve`. The fronts live in a process of the product's own (`pagoda-daemon simulate-fronts`),
spoken to over a Unix socket; a pod is a replica when a container of it has `--config FILE` and FILE comes from a ConfigMap.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import httpx

from pagoda_devcluster.client.watching import CONFLICT, AsyncApi
from pagoda_devcluster.cluster.errors import ApiError
from pagoda_devcluster.fake import pods
from pagoda_devcluster.fake.plays import NOT_READY, READY, Object, PodContext, PodPlay

CONFIG_OPTION = "--config"
DOWN = {PodPlay.IMAGE_PULL_BACKOFF.value, PodPlay.CRASH_LOOP.value, PodPlay.OOM_KILLED.value}
REFUSED = 422


class Wish(StrEnum):
    """What is to become of a pod's front."""

    RUN = "run"
    STOP = "stop"
    KILL = "kill"
    LEAVE = "leave"


@dataclass(frozen=True)
class Source:
    """Where a replica's configuration is."""

    config_map: str
    key: str


def source_of(pod: Object) -> Source | None:
    """Follows `--config FILE` through mount and volume, as the file would come to the container."""
    for container in pod["spec"]["containers"]:
        arguments = [*container.get("command", []), *container.get("args", [])]
        if CONFIG_OPTION in arguments[:-1]:
            return mounted(pod, container, arguments[arguments.index(CONFIG_OPTION) + 1])
    return None


def mounted(pod: Object, container: Object, file: str) -> Source | None:
    maps = {volume["name"]: volume["configMap"] for volume in pod["spec"].get("volumes", []) if "configMap" in volume}
    for mount in container.get("volumeMounts", []):
        folder = mount["mountPath"].rstrip("/") + "/"
        if file.startswith(folder) and mount["name"] in maps:
            found, path = maps[mount["name"]], file.removeprefix(folder)
            return Source(found["name"], next((item["key"] for item in found.get("items", []) if item["path"] == path), path))
    return None


def wish(pod: Object, context: PodContext, now: datetime) -> Wish:
    """A silent kubelet's containers go on. A container that is dead or never started has no front; one told to end drains until its
    grace has passed."""
    if context.node_down:
        return Wish.LEAVE
    if deleted := pod["metadata"].get("deletionTimestamp"):
        return Wish.KILL if now >= pods.read_time(deleted) else Wish.STOP
    return Wish.KILL if pods.has_ended(pod) or context.complaint or context.plays & DOWN else Wish.RUN


class Fronts:
    """All fronts of a cluster as last seen."""

    def __init__(self, socket: Path, api: AsyncApi) -> None:
        self._http = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(socket)), base_url="http://fronts", timeout=60)
        self._api = api
        self._seen: dict[str, Any] = {}
        self._killed: set[str] = set()

    async def look(self, changed: Callable[[set[str]], None]) -> None:
        """Asks for all of them, and reports the uids of those that have changed."""
        before, self._seen = self._seen, (await self._http.get("/replicas")).json()
        self._killed &= self._seen.keys()
        changed({uid for uid in before.keys() | self._seen.keys() if before.get(uid) != self._seen.get(uid)})

    async def keep(self, uids: set[str]) -> None:
        """Ends those whose pods are gone without a word."""
        for uid in self._seen.keys() - uids:
            await self._end(uid, kill=True)

    async def tend(self, pod: Object, context: PodContext, now: datetime) -> PodContext:
        """Does what is to be done, and returns the context with the front in it."""
        source, uid = source_of(pod), pod["metadata"]["uid"]
        if source is None:
            return context
        match wish(pod, context, now):
            case Wish.RUN:
                return await self._run(pod, source, context)
            case Wish.STOP if uid in self._seen:
                await self._end(uid, kill=False)
            case Wish.KILL if uid in self._seen:
                await self._end(uid, kill=True)
                return replace(context, serves=True)
        return replace(context, serves=True, front=self._state(uid))

    def _state(self, uid: str) -> str | None:
        found = self._seen.get(uid)
        return found and (READY if found["ready"] else NOT_READY)

    async def _run(self, pod: Object, source: Source, context: PodContext) -> PodContext:
        uid = pod["metadata"]["uid"]
        if uid in self._killed:
            # As last seen it may be ready still: its pod would be called ready over a front that is gone.
            raise ApiError(f"the killed front of {pod['metadata']['namespace']}/{pod['metadata']['name']} still closes", CONFLICT)
        if uid not in self._seen and (complaint := await self._start(pod, source, context)):
            return replace(context, complaint=complaint)
        if failure := self._seen[uid]["failure"]:
            return replace(context, complaint=failure)
        return replace(context, serves=True, front=self._state(uid))

    async def _start(self, pod: Object, source: Source, context: PodContext) -> str:
        """What is wrong with its configuration, if anything. An address whose last holder still closes is an error to try again."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        found = await self._api.get(f"/api/v1/namespaces/{namespace}/configmaps/{source.config_map}")
        if found is None:
            raise ApiError(f"configmap {namespace}/{source.config_map} is not there yet", CONFLICT)
        try:
            config = json.loads(found.get("data", {})[source.key])
        except (KeyError, ValueError) as error:
            return f"configmap {source.config_map}, key {source.key}: {type(error).__name__}: {error}"
        order = {"address": context.ip, "config": config, "load_s": context.ready_after}
        answer = await self._http.put(f"/replicas/{uid}", json=order)
        if answer.status_code == REFUSED:
            return str(answer.json()["message"])
        if answer.is_error:
            raise ApiError(f"front of {namespace}/{pod['metadata']['name']}: {answer.text}", answer.status_code)
        self._seen[uid] = answer.json()
        return ""

    async def _end(self, uid: str, *, kill: bool) -> None:
        await self._http.delete(f"/replicas/{uid}", params={"kill": "true"} if kill else {})
        if kill:
            self._killed.add(uid)
