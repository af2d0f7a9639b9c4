"""What a plan may ask `apply` to write, one type per verb. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import PODS, Child, Resource
from pagoda_operator.decide.render.children import Manifest
from pagoda_operator.decide.render.overlay import Edit, disowned

_REPLICAS: Final = ("spec", "replicas")


@dataclass(frozen=True)
class Create:
    """Make an object that must not exist yet."""

    resource: Resource
    manifest: Manifest

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.manifest["metadata"]["name"])


class _OfLive:
    """A write of a live object, at exactly the version that was observed."""

    live: Pod | Child

    @property
    def name(self) -> str:
        """The object's name."""
        return self.live.name


@dataclass(frozen=True)
class Apply(_OfLive):
    """Bring a live object to what was rendered. `edits`: what others changed in it."""

    resource: Resource
    manifest: Manifest
    live: Child
    edits: tuple[Edit, ...] = ()

    @property
    def adopts(self) -> bool:
        """Whether it restores the owner reference, without which a child outlives its service."""
        return self.live.controller is None

    @property
    def replacement(self) -> list[dict[str, Any]]:
        """A JSON patch that replaces the whole spec; empty if server-side apply is enough.

        Server-side apply leaves what other managers added, and is refused if that contradicts what is applied, such as a second source of a
        volume.
        """
        if not any(edit.manager and edit.path != _REPLICAS for edit in self.edits):
            return []
        annotations = self.live.meta.get("annotations", {}) | self.manifest["metadata"]["annotations"]
        return [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": self.live.meta["resourceVersion"]},
            {"op": "replace", "path": "/metadata/managedFields", "value": disowned(self.live.meta)},
            {"op": "add", "path": "/metadata/annotations", "value": annotations},
            {"op": "replace", "path": "/spec", "value": self.manifest["spec"]},
        ]


@dataclass(frozen=True)
class Delete(_OfLive):
    """Remove a live object."""

    resource: Resource
    live: Child


@dataclass(frozen=True)
class Annotate(_OfLive):
    """Set annotations of a live pod, or of one of our children; None removes."""

    live: Pod | Child
    annotations: Mapping[str, str | None]

    @property
    def resource(self) -> Resource:
        """Which kind."""
        return self.live.resource if isinstance(self.live, Child) else PODS


Write = Create | Apply | Delete | Annotate


def at_risk(write: Write) -> bool:
    """Whether it makes, removes or adopts an object. The garbage collector removes owner references if a service is deleted without its
    children, and the deletion may not be cached yet. A child that had its owner back would be deleted with it."""
    return isinstance(write, Create | Delete) or (isinstance(write, Apply) and write.adopts)
