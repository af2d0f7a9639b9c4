"""Has the ServingProfile `default` be as the installation wrote it. Called by `reconcile` for the key without a namespace.

A chart cannot hold the object itself: Helm looks every kind up before it installs the CRDs that stand among its templates.
"""

from __future__ import annotations

from typing import Any, Final

from pagoda_contracts.names import ANNOTATION_RENDERED, DEFAULT_PROFILE, LABEL_MANAGED_BY, MANAGED_BY
from pagoda_contracts.resources.profile import ServingProfileSpec

from pagoda_operator.api.state import PROFILES, Key
from pagoda_operator.decide.render.overlay import lost
from pagoda_operator.inventory.values import digest
from pagoda_operator.run.apply import Cluster, apply_anew

# In the queue like a service; no service has an empty namespace.
DEFAULT_KEY: Final = Key("", DEFAULT_PROFILE)


async def ensure_default_profile(cluster: Cluster, spec: ServingProfileSpec | None) -> None:
    """Compare, then apply. Without a spec of ours the name is an admin's to use."""
    if spec is None:
        return
    wanted = manifest(spec)
    live = await cluster.get(PROFILES, "", DEFAULT_PROFILE)
    if live is None or lost(wanted, live) is not None:
        await apply_anew(cluster, PROFILES, wanted)


def manifest(spec: ServingProfileSpec) -> dict[str, Any]:
    """The profile as an object; the hash finds what was taken out of it, which a comparison of the rest would not."""
    body = {"apiVersion": PROFILES.api_version, "kind": PROFILES.kind, "spec": spec.wire()}
    annotations = {ANNOTATION_RENDERED: digest(body)}
    meta = {"name": DEFAULT_PROFILE, "labels": {LABEL_MANAGED_BY: MANAGED_BY}, "annotations": annotations}
    return body | {"metadata": meta}
