"""Identity of what a replica runs: hashes of the service's own words, and the children's names made of them.

Read by `plan` and the renderers. The profile's content is not part of it: an edited profile or a new operator rolls no pod.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, NamedTuple

from pagoda_contracts.resources.service import Accelerator, InferenceServiceSpec

_LENGTH: Final = 10


class Revision(NamedTuple):
    """One (revision × accelerator): `name` is that of its Deployment, ConfigMap and ControllerRevision."""

    name: str
    hash: str
    accelerator: str


def identify(service: str, spec: InferenceServiceSpec, accelerator: Accelerator) -> Revision:
    """The revision that the spec asks for on this accelerator.

    Only fields that differ from their default are hashed, so that a field added by a later version changes no hash.
    The accelerator counts by its content, not by its place in the list: reordering alternatives rolls nothing.
    """
    words = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    parts = {name: words[name] for name in ("model", "engine", "drain", "podTemplate", "profileRef") if name in words}
    kind = accelerator.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"fallback_after"})
    revision, where = digest(parts), digest(kind)
    return Revision(f"{service}-{digest([revision, where])}", revision, where)


def digest(value: Any) -> str:
    """Ten hexadecimal digits of a JSON value's canonical form: 40 bits, for a handful of revisions per service."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
