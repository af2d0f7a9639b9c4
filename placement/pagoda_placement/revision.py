"""The name of a revision: the hash of the service's own fields and of the entry with its devices. Pure.

The profile's content is not part of it: an edited profile or a new operator rolls no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from pagoda_contracts.resources.effect import has_sidecar
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.service import InferenceServiceSpec

from pagoda_placement.values import digest

# An empty value of these means the same as none.
_ON_CPU: Final = ("health", "slo", "clientKeys")
_ONLY_IF_SET: Final = (*_ON_CPU, "resources")  # on CPU the entry says what is requested


class Revision(NamedTuple):
    """One (revision × accelerator): `name` is that of its Deployment, ConfigMap and ControllerRevision."""

    name: str
    hash: str
    accelerator: str


def identify(
    service: str, spec: InferenceServiceSpec, accelerator: Accelerator, resolved: Mapping[str, str] = MappingProxyType({})
) -> Revision:
    """The revision that the spec asks for on this accelerator. `resolved`: the devices, if the entry leaves a choice.

    Only fields that differ from their default are hashed, so that a field added by a later version changes no hash.
    The accelerator counts by its content, not by its place in the list: reordering alternatives rolls nothing.
    """
    fields = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    names = ("model", "engine", "drain", "podTemplate", "profileRef", *(("credentials",) if has_sidecar(spec) else ()))
    parts = {name: fields[name] for name in names if name in fields}
    if spec.adapters is not None:  # an empty block asks for something, too; who may attach adapters concerns no pod
        parts["adapters"] = {name: value for name, value in fields["adapters"].items() if name != "allowFrom"}
    only = _ONLY_IF_SET if accelerator.cpu is None else _ON_CPU
    parts |= {name: fields[name] for name in only if fields.get(name)}
    revision, kind = digest(parts), entry_digest(accelerator, resolved)
    return Revision(f"{service}-{digest([revision, kind])}", revision, kind)


def entry_digest(accelerator: Accelerator, resolved: Mapping[str, str] = MappingProxyType({})) -> str:
    """Names an entry of `accelerators[]` by its content, without its `fallbackAfter`, and by its devices if they were chosen."""
    fields = accelerator.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"fallback_after"})
    return digest([fields, dict(resolved)] if resolved else fields)
