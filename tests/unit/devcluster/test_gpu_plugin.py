"""The device plugin against a kubelet's socket: it registers, lists, allocates, and comes again after a kubelet that restarts."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest
from pagoda_devcluster.gpus import claims, plugin, wire
from pagoda_devcluster.gpus.devices import Device

KNOWN = wire.device_plugin()
RESOURCES = {
    "nvidia.com/gpu": [Device("GPU-1", 0)],
    "nvidia.com/mig-3g.40gb": [Device("MIG-1", 1, "3g.40gb"), Device("MIG-2", 2, "3g.40gb")],
}


class Kubelet:
    """The registration half of one; `clear` is what its start does to the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.registered = folder, asyncio.Queue()
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        for socket in self.folder.glob("*.sock"):
            socket.unlink()
        handler = grpc.method_handlers_generic_handler(
            "v1beta1.Registration", {"Register": plugin.unary(self._register, KNOWN.RegisterRequest)}
        )
        await plugin.serving(self._stack, self.folder / plugin.KUBELET_SOCKET, handler)

    async def stop(self) -> None:
        await self._stack.aclose()

    async def _register(self, request, _context):
        await self.registered.put((request.resource_name, request.endpoint, request.version))
        return KNOWN.Empty()

    async def both(self) -> dict[str, str]:
        found = [await asyncio.wait_for(self.registered.get(), 60) for _ in RESOURCES]
        assert {version for _, _, version in found} == {"v1beta1"}
        return {resource: endpoint for resource, endpoint, _ in found}


@pytest.fixture
async def offered() -> AsyncIterator[Path]:
    # Not tmp_path, which bears the test's name: the path of a socket has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pagoda-test-") as folder:
        task = asyncio.create_task(plugin.offer(RESOURCES, Path(folder)))
        yield Path(folder)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def call(channel, method: str, request: str, answer: str):
    return channel.unary_unary(
        f"/{wire.DEVICE_PLUGIN_SERVICE}/{method}",
        request_serializer=plugin.serialized,
        response_deserializer=getattr(KNOWN, answer).FromString,
    )


async def listed(channel) -> list[tuple[str, str]]:
    method = f"/{wire.DEVICE_PLUGIN_SERVICE}/ListAndWatch"
    stream = channel.unary_stream(
        method, request_serializer=plugin.serialized, response_deserializer=KNOWN.ListAndWatchResponse.FromString
    )(KNOWN.Empty())
    first = await stream.read()
    stream.cancel()
    return [(device.ID, device.health) for device in first.devices]


async def test_a_kubelet_learns_each_resource_and_its_devices(offered):
    kubelet = Kubelet(offered)
    await kubelet.start()
    endpoints = await kubelet.both()
    async with grpc.aio.insecure_channel(f"unix:{offered / endpoints['nvidia.com/mig-3g.40gb']}") as channel:
        assert await listed(channel) == [("MIG-1", "Healthy"), ("MIG-2", "Healthy")]
        request = KNOWN.AllocateRequest(container_requests=[KNOWN.ContainerAllocateRequest(devices_ids=["MIG-2"])])
        allocated = await call(channel, "Allocate", "AllocateRequest", "AllocateResponse")(request)
        assert dict(allocated.container_responses[0].envs) == {"NVIDIA_VISIBLE_DEVICES": "MIG-2"}
    await kubelet.stop()


async def test_a_device_that_is_not_there_is_not_allocated(offered):
    kubelet = Kubelet(offered)
    await kubelet.start()
    endpoints = await kubelet.both()
    async with grpc.aio.insecure_channel(f"unix:{offered / endpoints['nvidia.com/gpu']}") as channel:
        request = KNOWN.AllocateRequest(container_requests=[KNOWN.ContainerAllocateRequest(devices_ids=["MIG-2"])])
        with pytest.raises(grpc.aio.AioRpcError, match=r"nvidia\.com/gpu has no device MIG-2"):
            await call(channel, "Allocate", "AllocateRequest", "AllocateResponse")(request)
    await kubelet.stop()


async def test_a_kubelet_that_starts_again_is_registered_with_again(offered):
    first, second = Kubelet(offered), Kubelet(offered)
    await first.start()
    await first.both()
    await first.stop()
    await second.start()
    assert set(await second.both()) == set(RESOURCES)
    await second.stop()


async def test_a_folder_that_was_cleared_under_a_living_kubelet_is_filled_again(offered):
    kubelet = Kubelet(offered)
    await kubelet.start()
    endpoints = await kubelet.both()
    (offered / endpoints["nvidia.com/gpu"]).unlink()
    assert set(await kubelet.both()) == set(RESOURCES)
    await kubelet.stop()


def test_only_devices_that_were_allocated_to_this_very_claim_are_prepared():
    ours, other = {"driver": "gpu.nvidia.com", "device": "gpu-0"}, {"driver": "nic.example.com", "device": "a"}
    claim = {"metadata": {"uid": "u"}, "status": {"allocation": {"devices": {"results": [ours, other]}}}}
    assert claims.devices_of_claim(claim, "u") == [ours]
    assert claims.devices_of_claim(claim, "an older one") == []
    assert claims.devices_of_claim({"metadata": {"uid": "u"}}, "u") == []
    assert claims.devices_of_claim(None, "u") == []


def test_the_wire_has_the_numbers_of_the_published_protocols():
    request = KNOWN.RegisterRequest(version="v", endpoint="e", resource_name="r")
    assert request.SerializeToString() == b"\n\x01v\x12\x01e\x1a\x01r"
    envs = KNOWN.ContainerAllocateResponse(envs={"k": "v"})
    assert envs.SerializeToString() == b"\n\x06\n\x01k\x12\x01v"
    info = wire.registration().PluginInfo(type="t", name="n", endpoint="e", supported_versions=["1"])
    assert info.SerializeToString() == b"\n\x01t\x12\x01n\x1a\x01e\x22\x011"
    with pytest.raises(ValueError, match="cannot read 'int32 x'"):
        wire.Messages("p", {"M": ["int32 x"]})
