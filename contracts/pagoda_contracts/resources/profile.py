"""ServingProfile: the administrator's template for replicas' pods, and what a service may overlay on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from pagoda_contracts.names import API_VERSION
from pagoda_contracts.resources.meta import ApiVersion, Column, Kind, Model, ObjectMeta

Image = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9./:@_-]*$")]
AllowedPath = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[A-Za-z][A-Za-z0-9.\[\]_/-]*$")]


class Images(Model):
    """Images of a replica's pod."""

    daemon: Image = Field(description="The inference daemon.")


class ServingProfileSpec(Model):
    """How replicas' pods look."""

    images: Images = Field(description="Images of a replica's pod.")
    pod_template: dict[str, Any] | None = Field(
        default=None,
        description="Pod template (metadata, spec) under every replica: tolerations, node selectors, volumes, pull secrets.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    allow: Annotated[tuple[AllowedPath, ...], Field(max_length=64)] = Field(
        default=(),
        description="Paths a service's podTemplate may set, such as metadata.labels or spec.nodeSelector; a path allows all below it.",
    )


class ServingProfile(Model):
    """The administrator's template for replicas' pods."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["ServingProfile"] = "ServingProfile"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServingProfileSpec = Field(description="How replicas' pods look.")


SERVING_PROFILE = Kind(
    kind="ServingProfile",
    plural="servingprofiles",
    scope="Cluster",
    model=ServingProfile,
    columns=(
        Column("Daemon", "string", ".spec.images.daemon", "Image of the daemon"),
        Column("Age", "date", ".metadata.creationTimestamp", "Age"),
    ),
    scale=False,
)
