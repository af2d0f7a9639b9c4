"""The GPUs and MIG slices of one node, and the extended resources they are offered under. Pure; same node, same identifiers."""

from dataclasses import dataclass
from uuid import NAMESPACE_URL, uuid5

from pagoda_devcluster.gpus.layout import Group, NodeClass

GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE = "nvidia.com/mig-"


@dataclass(frozen=True)
class Device:
    """One GPU, or one slice of one. `profile` is empty on a whole GPU; `stranded`: MIG is on and nothing may be asked of it."""

    uuid: str
    index: int
    profile: str = ""
    parent_uuid: str = ""
    slot: int = 0
    stranded: bool = False

    @property
    def is_slice(self) -> bool:
        return bool(self.profile)


def devices_of(node: NodeClass, node_name: str) -> list[Device]:
    """What can be asked for, in order of GPUs: a partitioned GPU is not offered beside its slices."""
    groups = [group for group in node.gpus for _ in range(group.count)]
    return [device for index, group in enumerate(groups) for device in _of_gpu(group, node_name, index)]


def _of_gpu(group: Group, node_name: str, index: int) -> list[Device]:
    uuid = f"GPU-{uuid5(NAMESPACE_URL, f'{node_name}/{index}')}"
    if not group.partitions:
        return [Device(uuid, index, stranded=group.mig is not None)]
    profiles = [profile for profile, count in group.partitions.items() for _ in range(count)]
    return [
        Device(f"MIG-{uuid5(NAMESPACE_URL, f'{node_name}/{index}/{slot}')}", index, profile, uuid, slot)
        for slot, profile in enumerate(profiles)
    ]


def resource_of(node: NodeClass, device: Device) -> str:
    """Slices keep the name of whole GPUs under strategy `single`; a `+` is no character of a resource name."""
    if node.mig_strategy == "single" or not device.is_slice:
        return GPU_RESOURCE
    return MIG_RESOURCE + plain(device.profile)


def plain(profile: str) -> str:
    return profile.replace("+", ".")


def resources_of(node: NodeClass, node_name: str) -> dict[str, list[Device]]:
    """Extended resource → its devices. A resource without a device is not there at all, and no resource without a device plugin."""
    found: dict[str, list[Device]] = {}
    for device in devices_of(node, node_name) if node.device_plugin else ():
        if not device.stranded:
            found.setdefault(resource_of(node, device), []).append(device)
    return found


def allocatable(node: NodeClass, node_name: str) -> dict[str, str]:
    """For the status of a node that no kubelet reports for."""
    others = {resource: str(count) for resource, count in node.resources.items()}
    return others | {resource: str(len(devices)) for resource, devices in resources_of(node, node_name).items()}
