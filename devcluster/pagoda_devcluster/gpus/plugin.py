"""A device plugin (v1beta1) over the kubelet's sockets: one server for each extended resource, registered anew with every kubelet.

`__main__.py` runs it inside the node. It hands out identifiers and environment only: there is no device file behind them.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import structlog

from pagoda_devcluster.gpus import wire
from pagoda_devcluster.gpus.devices import Device

KUBELET_SOCKET = "kubelet.sock"
API_VERSION = "v1beta1"
# Nothing announces a kubelet that started anew but its socket; looking costs a stat.
LOOK_SECONDS = 0.2
log = structlog.get_logger()


@dataclass
class ResourceServer:
    """Offers the devices of one resource."""

    resource: str
    devices: list[Device]
    messages: wire.Messages
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def endpoint(self) -> str:
        return f"{self.resource.replace('/', '-')}.sock"

    async def options(self, _request: Any, _context: Any) -> Any:
        return self.messages.DevicePluginOptions()

    async def list_and_watch(self, _request: Any, _context: Any) -> AsyncIterator[Any]:
        """The stream stays open: its end means to the kubelet that the devices are gone."""
        offered = [self.messages.Device(ID=device.uuid, health="Healthy") for device in self.devices]
        yield self.messages.ListAndWatchResponse(devices=offered)
        await self.stopped.wait()

    async def allocate(self, request: Any, context: Any) -> Any:
        known = {device.uuid for device in self.devices}
        answers = []
        for container in request.container_requests:
            asked = list(container.devices_ids)
            if unknown := sorted(set(asked) - known):
                await context.abort(grpc.StatusCode.NOT_FOUND, f"{self.resource} has no device {', '.join(unknown)}")
            answers.append(self.messages.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(asked)}))
        return self.messages.AllocateResponse(container_responses=answers)

    def handler(self) -> Any:
        known = self.messages
        methods = {
            "GetDevicePluginOptions": unary(self.options, known.Empty),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self.list_and_watch, request_deserializer=known.Empty.FromString, response_serializer=serialized
            ),
            "Allocate": unary(self.allocate, known.AllocateRequest),
        }
        return grpc.method_handlers_generic_handler(wire.DEVICE_PLUGIN_SERVICE, methods)


def unary(method: Any, request: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(method, request_deserializer=request.FromString, response_serializer=serialized)


def serialized(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


async def serving(stack: AsyncExitStack, socket: Path, handler: Any) -> None:
    """A server on `socket` until the stack unwinds."""
    remove(socket)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    stack.push_async_callback(server.stop, None)


async def offer(resources: dict[str, list[Device]], folder: Path) -> None:
    """For ever: serve, register, and again after each start of a kubelet, which clears the folder and forgets its plugins."""
    messages = wire.device_plugin()
    while True:
        kubelet = await kubelet_socket(folder)
        servers = [ResourceServer(resource, devices, messages) for resource, devices in resources.items()]
        try:
            async with AsyncExitStack() as stack:
                await enter(stack, folder, servers)
                await gone(folder, servers, kubelet)
        except grpc.aio.AioRpcError as error:
            log.info("registration_failed", error=error.details())
            await asyncio.sleep(LOOK_SECONDS)


async def enter(stack: AsyncExitStack, folder: Path, servers: list[ResourceServer]) -> None:
    for one in servers:
        await serving(stack, folder / one.endpoint, one.handler())
        # Unwound first: the streams end, and stopping the server has nothing to wait for.
        stack.callback(one.stopped.set)
    async with grpc.aio.insecure_channel(f"unix:{folder / KUBELET_SOCKET}") as channel:
        for one in servers:
            await register(channel, one)
            log.info("registered", resource=one.resource, devices=len(one.devices))


async def register(channel: Any, server: ResourceServer) -> None:
    known = server.messages
    call = channel.unary_unary(wire.REGISTER_METHOD, request_serializer=serialized, response_deserializer=known.Empty.FromString)
    await call(known.RegisterRequest(version=API_VERSION, endpoint=server.endpoint, resource_name=server.resource))


def remove(socket: Path) -> None:
    """What a killed plugin left: its address could not be bound."""
    socket.unlink(missing_ok=True)


async def until(condition: Callable[[], bool]) -> None:
    """Polls: other ends of sockets announce themselves in no other way, and inotify instances are few (128 a user)."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)


def identity(socket: Path) -> tuple[int, int] | None:
    try:
        found = socket.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns


async def kubelet_socket(folder: Path) -> tuple[int, int]:
    found: list[tuple[int, int]] = []

    def there() -> bool:
        found.extend(filter(None, [identity(folder / KUBELET_SOCKET)]))
        return bool(found)

    await until(there)
    return found[0]


async def gone(folder: Path, servers: list[ResourceServer], kubelet: tuple[int, int]) -> None:
    """Returns when this kubelet's socket or one of ours is not there any more."""

    def lost() -> bool:
        return identity(folder / KUBELET_SOCKET) != kubelet or not all(identity(folder / one.endpoint) for one in servers)

    await until(lost)
    log.info("kubelet_restarted")
