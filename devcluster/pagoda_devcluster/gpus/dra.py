"""What the NVIDIA DRA driver would publish: a ResourceSlice for each node and the DeviceClasses. Pure (`resource.k8s.io/v1`)."""

from typing import Any

from pagoda_devcluster.cluster.manifests import Placed
from pagoda_devcluster.gpus.devices import Device, devices_of, plain
from pagoda_devcluster.gpus.labels import engine_counts
from pagoda_devcluster.gpus.layout import Engines, NodeClass, Product

DRIVER = "gpu.nvidia.com"
API = "resource.k8s.io/v1"
PATH = f"/apis/{API}"
CLASSES = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig", "vfio.gpu.nvidia.com": "vfio"}
# The driver's own names of what a slice has of each engine.
ENGINES = {"copy": "copyEngines", "decoder": "decoders", "encoder": "encoders", "jpeg": "jpegEngines", "ofa": "ofaEngines"}


def device_classes() -> list[Placed]:
    return [(f"{PATH}/deviceclasses/{name}", _device_class(name, kind)) for name, kind in CLASSES.items()]


def _device_class(name: str, kind: str) -> dict[str, Any]:
    chosen = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    return {
        "apiVersion": API,
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": chosen}}]},
    }


def resource_slice(node: NodeClass, node_name: str, uid: str) -> Placed | None:
    """None where there is nothing to offer; owned by the node, so that it goes with it. A stranded GPU is in no slice, as in life."""
    offered = [device for device in devices_of(node, node_name) if not device.stranded]
    if node.gpu is None or not offered:
        return None
    gpu, name = node.gpu, f"{node_name}-{DRIVER}"
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": uid, "controller": True}
    spec = {
        "driver": DRIVER,
        "nodeName": node_name,
        "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1},
        "devices": [_device(gpu, device) for device in offered],
    }
    body = {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec}
    return f"{PATH}/resourceslices/{name}", body


def _device(gpu: Product, device: Device) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "type": {"string": "mig" if device.is_slice else "gpu"},
        "uuid": {"string": device.uuid},
        "productName": {"string": gpu.product},
        "brand": {"string": gpu.brand},
        "architecture": {"string": gpu.family.capitalize()},
        "cudaComputeCapability": {"version": semantic(gpu.compute)},
        "driverVersion": {"version": semantic(gpu.driver)},
        "cudaDriverVersion": {"version": semantic(gpu.cuda)},
    }
    if device.is_slice:
        attributes |= {"profile": {"string": device.profile}, "parentUUID": {"string": device.parent_uuid}}
    return {"name": device_name(device), "attributes": attributes, "capacity": _capacity(gpu, device)}


def _capacity(gpu: Product, device: Device) -> dict[str, Any]:
    part = gpu.mig_profiles[device.profile] if device.is_slice else gpu
    return {
        "memory": {"value": f"{part.memory_mib}Mi"},
        "multiprocessors": {"value": str(part.multiprocessors)},
    } | _engine_capacity(part.engines)


def _engine_capacity(engines: Engines) -> dict[str, Any]:
    return {ENGINES[name]: {"value": str(count)} for name, count in engine_counts(engines).items()}


def device_name(device: Device) -> str:
    """A DNS label, as the API wants it."""
    if not device.is_slice:
        return f"gpu-{device.index}"
    return f"gpu-{device.index}-mig-{plain(device.profile).replace('.', '-')}-{device.slot}"


def semantic(version: str) -> str:
    """The API takes three numbers without leading zeros: 580.95.05 is 580.95.5."""
    numbers = [str(int(part)) for part in version.split(".")]
    return ".".join([*numbers, "0", "0"][:3])
