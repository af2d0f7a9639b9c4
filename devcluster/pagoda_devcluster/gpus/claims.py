"""The kubelet's half of DRA for `gpu.nvidia.com`: registers as a driver and answers that a claim's devices are prepared.

Without a registered driver the kubelet removes the node's ResourceSlices and starts no pod that has a claim. Nothing is prepared here:
there is no device; the answer names those that the scheduler allocated.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from grpc import method_handlers_generic_handler

from pagoda_devcluster.client.watching import AsyncApi, Object
from pagoda_devcluster.gpus import wire
from pagoda_devcluster.gpus.dra import DRIVER, PATH
from pagoda_devcluster.gpus.plugin import serving, unary

KUBELET_FOLDER = Path("/var/lib/kubelet")
log = structlog.get_logger()


def devices_of_claim(claim: Object | None, uid: str) -> list[Object]:
    """The allocated devices of this driver; of a claim that is another one by now, none."""
    if claim is None or claim["metadata"]["uid"] != uid:
        return []
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return [result for result in results if result["driver"] == DRIVER]


@dataclass
class Driver:
    """Both services, on two sockets."""

    api: AsyncApi
    folder: Path
    known: wire.Messages
    greeting: wire.Messages

    @property
    def socket(self) -> Path:
        return self.folder / "plugins" / DRIVER / "dra.sock"

    async def info(self, _request: Any, _context: Any) -> Any:
        versions = ["v1.DRAPlugin"]
        return self.greeting.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint=str(self.socket), supported_versions=versions)

    async def notify(self, request: Any, _context: Any) -> Any:
        log.info("driver_registered", registered=request.plugin_registered, error=request.error)
        return self.greeting.RegistrationStatusResponse()

    async def prepare(self, request: Any, _context: Any) -> Any:
        return self.known.NodePrepareResourcesResponse(claims={claim.uid: await self._prepared(claim) for claim in request.claims})

    async def _prepared(self, claim: Any) -> Any:
        found = await self.api.get(f"{PATH}/namespaces/{claim.namespace}/resourceclaims/{claim.name}")
        results = devices_of_claim(found, claim.uid)
        if not results:
            return self.known.NodePrepareResourceResponse(error=f"claim {claim.namespace}/{claim.name} has no device of {DRIVER}")
        devices = [self.known.Device(request_names=[one["request"]], pool_name=one["pool"], device_name=one["device"]) for one in results]
        return self.known.NodePrepareResourceResponse(devices=devices)

    async def unprepare(self, request: Any, _context: Any) -> Any:
        done = {claim.uid: self.known.NodeUnprepareResourceResponse() for claim in request.claims}
        return self.known.NodeUnprepareResourcesResponse(claims=done)

    async def start(self, stack: AsyncExitStack) -> None:
        """A kubelet finds the second socket by itself, after a restart too."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        (self.folder / "plugins_registry").mkdir(parents=True, exist_ok=True)
        methods = {
            "NodePrepareResources": unary(self.prepare, self.known.NodePrepareResourcesRequest),
            "NodeUnprepareResources": unary(self.unprepare, self.known.NodeUnprepareResourcesRequest),
        }
        await serving(stack, self.socket, method_handlers_generic_handler(wire.DRA_SERVICE, methods))
        greetings = {
            "GetInfo": unary(self.info, self.greeting.InfoRequest),
            "NotifyRegistrationStatus": unary(self.notify, self.greeting.RegistrationStatus),
        }
        registry = self.folder / "plugins_registry" / f"{DRIVER}-reg.sock"
        await serving(stack, registry, method_handlers_generic_handler(wire.REGISTRATION_SERVICE, greetings))
