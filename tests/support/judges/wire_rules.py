"""What may not change between two versions of a wire that work together: protos, DaemonConfig's schema, words.

The protos' rules are those that buf calls WIRE, and one more: a field that is called otherwise counts as another one, since nothing in a
file tells a new name from a number that was given to something new. Pure: old and new in, sentences about breaks out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

Body = dict[str, Any]
# The protos that every compiler brings, such as google.protobuf.Struct.
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def compiled(folder: Path) -> FileDescriptorSet:
    """All protos of a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "set"
        paths = [f"-I{folder}", f"-I{WELL_KNOWN}", f"--descriptor_set_out={made}"]
        if protoc.main(["protoc", *paths, *map(str, sorted(folder.glob("*.proto")))]) != 0:
            raise ValueError(f"protoc refuses what is in {folder}")
        return FileDescriptorSet.FromString(made.read_bytes())


def proto_breaks(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """What a part of the old version would misread, or not find."""
    messages, enums = _types(new)
    found = []
    for file in old.file:
        for message in file.message_type:
            now = messages.get(f"{file.package}.{message.name}")
            found += [f"message {message.name} is gone"] if now is None else _message_breaks(message, now)
        for enum in file.enum_type:
            values = enums.get(f"{file.package}.{enum.name}")
            found += [f"enum {enum.name} is gone"] if values is None else _enum_breaks(enum, values)
    return found


def _types(files: FileDescriptorSet) -> tuple[dict[str, DescriptorProto], dict[str, EnumDescriptorProto]]:
    def named(file: FileDescriptorProto, kinds: Any) -> dict[str, Any]:
        return {f"{file.package}.{kind.name}": kind for kind in kinds}

    messages = [named(file, file.message_type) for file in files.file]
    enums = [named(file, file.enum_type) for file in files.file]
    return {k: v for part in messages for k, v in part.items()}, {k: v for part in enums for k, v in part.items()}


def _message_breaks(old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    if old.nested_type or old.enum_type:  # ours have none; these rules would not see into them
        raise ValueError(f"{old.name} holds types of its own")
    fields = {field.number: field for field in new.field}
    names = {field.name: field.number for field in new.field}
    for field in old.field:
        now = fields.get(field.number)
        where = f"{old.name}.{field.name} = {field.number}"
        if now is None or now.name != field.name:
            place = f"is {names[field.name]} now" if field.name in names else "is gone" if now is None else f"is {now.name} now"
            yield f"{where} {place}"
        elif _shape(old, field) != _shape(new, now):
            yield f"{where} was {_shape(old, field)}, is {_shape(new, now)}"


def _shape(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """All that decides how its bytes are read."""
    label = FieldDescriptorProto.Label.Name(field.label)
    kind = field.type_name or FieldDescriptorProto.Type.Name(field.type)
    packed = f" packed={field.options.packed}" if field.options.HasField("packed") else ""
    presence = " optional" if field.proto3_optional else ""
    oneof = f" of {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") and not field.proto3_optional else ""
    return f"{label} {kind}{packed}{presence}{oneof}"


def _enum_breaks(old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    numbers = {value.name: value.number for value in new.value}
    for value in old.value:
        if numbers.get(value.name) != value.number:
            yield f"{old.name}.{value.name} = {value.number} is {numbers.get(value.name, 'gone')} now"


def schema_breaks(old: Body, new: Body) -> list[str]:
    """Of a JSON schema that both sides read and write: properties that are gone, newly demanded or may hold other values."""
    return [*_object_breaks("", old, new), *_each_def(old.get("$defs", {}), new.get("$defs", {}))]


def _each_def(old: Mapping[str, Body], new: Mapping[str, Body]) -> Iterator[str]:
    for name, part in old.items():
        if name not in new:
            yield f"{name} is gone"
        else:
            yield from _object_breaks(f"{name}.", part, new[name])


def _object_breaks(where: str, old: Body, new: Body) -> Iterator[str]:
    for name, part in old.get("properties", {}).items():
        now = new.get("properties", {}).get(name)
        if now is None:
            yield f"{where}{name} is gone"
        elif not _holds(_meaning(part), _meaning(now)):
            yield f"{where}{name} was {_meaning(part)}, is {_meaning(now)}"
    for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield f"{where}{name} is demanded, and was not"
    for name in sorted(set(old.get("required", ())) - set(new.get("required", ()))):
        yield f"{where}{name} may be left out, which a reader of before refuses"
    if old.get("additionalProperties") != new.get("additionalProperties"):
        yield f"{where or 'the whole '}takes other unknown fields than before"


def _holds(old: Any, new: Any) -> bool:
    """Whether `new` says all that `old` said. An enum may grow: who writes a value of it that is new knows the reader."""
    if isinstance(old, dict) and isinstance(new, dict):
        return set(old) == set(new) and all(
            set(old[name]) <= set(new[name]) if name == "enum" else _holds(old[name], new[name]) for name in old
        )
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_holds, old, new))
    return bool(old == new)


def _meaning(part: Any) -> Any:
    """Without what is only read by people. A default's field that is null is as if it were absent."""
    if isinstance(part, dict):
        kept = {name: _meaning(value) for name, value in part.items() if name not in ("title", "description", "later")}
        return kept | {"default": _given(kept["default"])} if isinstance(kept.get("default"), dict) else kept
    return [_meaning(one) for one in part] if isinstance(part, list) else part


def _given(default: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in default.items() if value is not None}


def word_breaks(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Names, ports, paths and methods that are spelled otherwise or gone."""
    return [f"{name} was {word!r}, is {new.get(name)!r}" for name, word in old.items() if new.get(name) != word]
