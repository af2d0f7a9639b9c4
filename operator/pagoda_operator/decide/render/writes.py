"""What a plan may ask `apply` to write, one type per verb. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagoda_operator.api.pods import Pod
from pagoda_operator.api.state import PODS, Child, Resource
from pagoda_operator.decide.render.children import Manifest


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
    """Bring a live object to what was rendered."""

    resource: Resource
    manifest: Manifest
    live: Child


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
