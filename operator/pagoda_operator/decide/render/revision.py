"""Identity of what a replica runs: hashes of the service's own words, and the children's names made of them.

Read by `plan` and the renderers. The profile's content is not part of it: an edited profile or a new operator rolls no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec

from pagoda_operator.decide.render.fetch import fetched
from pagoda_operator.inventory.values import digest

# An empty one is the same as none.
_ONLY_WHERE_SET: Final = ("health", "slo")


class Revision(NamedTuple):
    """One (revision × accelerator): `name` is that of its Deployment, ConfigMap and ControllerRevision."""

    name: str
    hash: str
    accelerator: str


def identify(
    service: str, spec: InferenceServiceSpec, accelerator: Accelerator, resolved: Mapping[str, str] = MappingProxyType({})
) -> Revision:
    """The revision that the spec asks for on this accelerator, where the entry leaves a choice on the devices it came down to.

    Only fields that differ from their default are hashed, so that a field added by a later version changes no hash.
    The accelerator counts by its content, not by its place in the list: reordering alternatives rolls nothing.
    """
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    names = ("model", "engine", "drain", "podTemplate", "profileRef", *(("credentials",) if fetched(spec) else ()))
    parts = {name: words[name] for name in names if name in words}
    parts |= {name: words[name] for name in _ONLY_WHERE_SET if words.get(name)}
    kind = _words(accelerator)
    revision, where = digest(parts), digest([kind, dict(resolved)] if resolved else kind)
    return Revision(f"{service}-{digest([revision, where])}", revision, where)


def entry_digest(accelerator: Accelerator) -> str:
    """Names an entry of `accelerators[]` by its content; how long it is waited for is not part of it."""
    return digest(_words(accelerator))


def _words(accelerator: Accelerator) -> dict[str, Any]:
    words: dict[str, Any] = accelerator.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"fallback_after"})
    return words
