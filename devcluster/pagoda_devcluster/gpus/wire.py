"""The three small protocols between a kubelet and its plugins, declared as their .proto files declare them, less what is not used here.

Own pool: the names (`v1beta1.Device`) are too general for a process-wide one. Only `plugin.py` and its tests use these classes.
"""

import re
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

FIELD = re.compile(r"(?P<repeated>repeated )?(?P<type>map<string, [\w.]+>|[\w.]+) (?P<name>\w+) = (?P<number>\d+)")
SCALARS = {"string": FieldDescriptorProto.TYPE_STRING, "bool": FieldDescriptorProto.TYPE_BOOL}
MAP = re.compile(r"map<string, (?P<value>[\w.]+)>")

DEVICE_PLUGIN_SERVICE: Final = "v1beta1.DevicePlugin"
REGISTER_METHOD: Final = "/v1beta1.Registration/Register"
REGISTRATION_SERVICE: Final = "pluginregistration.Registration"
DRA_SERVICE: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

DEVICE_PLUGIN: Final = {
    "Empty": [],
    "DevicePluginOptions": ["bool pre_start_required = 1", "bool get_preferred_allocation_available = 2"],
    "RegisterRequest": ["string version = 1", "string endpoint = 2", "string resource_name = 3", "DevicePluginOptions options = 4"],
    "Device": ["string ID = 1", "string health = 2"],
    "ListAndWatchResponse": ["repeated Device devices = 1"],
    "ContainerAllocateRequest": ["repeated string devices_ids = 1"],
    "AllocateRequest": ["repeated ContainerAllocateRequest container_requests = 1"],
    "ContainerAllocateResponse": ["map<string, string> envs = 1"],
    "AllocateResponse": ["repeated ContainerAllocateResponse container_responses = 1"],
}
REGISTRATION: Final = {
    "InfoRequest": [],
    "PluginInfo": ["string type = 1", "string name = 2", "string endpoint = 3", "repeated string supported_versions = 4"],
    "RegistrationStatus": ["bool plugin_registered = 1", "string error = 2"],
    "RegistrationStatusResponse": [],
}
DRA: Final = {
    "Claim": ["string namespace = 1", "string uid = 2", "string name = 3"],
    "Device": [
        "repeated string request_names = 1",
        "string pool_name = 2",
        "string device_name = 3",
        "repeated string cdi_device_ids = 4",
    ],
    "NodePrepareResourcesRequest": ["repeated Claim claims = 1"],
    "NodePrepareResourceResponse": ["repeated Device devices = 1", "string error = 2"],
    "NodePrepareResourcesResponse": ["map<string, NodePrepareResourceResponse> claims = 1"],
    "NodeUnprepareResourcesRequest": ["repeated Claim claims = 1"],
    "NodeUnprepareResourceResponse": ["string error = 1"],
    "NodeUnprepareResourcesResponse": ["map<string, NodeUnprepareResourceResponse> claims = 1"],
}


class Messages:
    """The message classes of one package, as attributes."""

    def __init__(self, package: str, declared: dict[str, list[str]]) -> None:
        file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in declared.items():
            _declare(file.message_type.add(name=name), f".{package}.{name}", package, fields)
        pool = DescriptorPool()
        pool.Add(file)
        self._classes = {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in declared}

    def __getattr__(self, name: str) -> Any:
        return self._classes[name]


def _declare(message: DescriptorProto, full_name: str, package: str, fields: list[str]) -> None:
    for text in fields:
        found = FIELD.fullmatch(text)
        if not found:
            raise ValueError(f"{full_name}: cannot read {text!r}")
        field = message.field.add(name=found["name"], number=int(found["number"]), label=FieldDescriptorProto.LABEL_OPTIONAL)
        if found["repeated"]:
            field.label = FieldDescriptorProto.LABEL_REPEATED
        if entry := MAP.fullmatch(found["type"]):
            _declare_map(message, full_name, package, (field, entry["value"]))
        else:
            _set_type(field, found["type"], package)


def _declare_map(message: DescriptorProto, full_name: str, package: str, typed: tuple[FieldDescriptorProto, str]) -> None:
    """A map is a repeated pair of its own type, as the compiler would write it."""
    field, value = typed
    name = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
    entry = message.nested_type.add(name=name)
    entry.options.map_entry = True
    for number, (part, kind) in enumerate((("key", "string"), ("value", value)), start=1):
        _set_type(entry.field.add(name=part, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL), kind, package)
    field.label, field.type = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.TYPE_MESSAGE
    field.type_name = f"{full_name}.{name}"


def _set_type(field: FieldDescriptorProto, kind: str, package: str) -> None:
    if kind in SCALARS:
        field.type = SCALARS[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"


def device_plugin() -> Messages:
    return Messages("v1beta1", DEVICE_PLUGIN)


def registration() -> Messages:
    return Messages("pluginregistration", REGISTRATION)


def dra() -> Messages:
    return Messages("k8s.io.kubelet.pkg.apis.dra.v1", DRA)
