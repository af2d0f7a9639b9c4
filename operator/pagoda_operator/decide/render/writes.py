"""What a plan may ask `apply` to write, one type per verb. Pure values: made by the deciding modules, carried out by `apply`."""

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


@dataclass(frozen=True)
class Apply:
    """Bring a live object, this very version of it, to what was rendered."""

    resource: Resource
    manifest: Manifest
    live: Child

    @property
    def name(self) -> str:
        """The object's name."""
        return self.live.name


@dataclass(frozen=True)
class Delete:
    """Remove a live object, this very version of it."""

    resource: Resource
    live: Child

    @property
    def name(self) -> str:
        """The object's name."""
        return self.live.name


@dataclass(frozen=True)
class Annotate:
    """Set annotations of a live pod, or of a child that is ours, this very version of it; None removes."""

    live: Pod | Child
    annotations: Mapping[str, str | None]

    @property
    def resource(self) -> Resource:
        """Which kind."""
        return self.live.resource if isinstance(self.live, Child) else PODS

    @property
    def name(self) -> str:
        """The object's name."""
        return self.live.name


Write = Create | Apply | Delete | Annotate
