"""What all kinds share: the frozen base with camelCase aliases, cross-field rules, metadata and conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from pagoda_contracts.names import API_VERSION


class Rule(NamedTuple):
    """A cross-field rule, declared once: CEL for the API server, `holds` for Python, so that verdicts cannot drift."""

    cel: str
    message: str
    holds: Callable[[Any], bool]


class Model(BaseModel):
    """Frozen, camelCase on the wire, unknown fields refused (a reader of live objects passes `extra="ignore"`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        for rule in type(self).rules:
            if not rule.holds(self):
                raise ValueError(rule.message)
        return self

    def wire(self) -> dict[str, Any]:
        """The object as it crosses a wire: aliases, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _our_version(value: str) -> str:
    if value != API_VERSION:
        raise ValueError(f"apiVersion {value!r}: accepted is {API_VERSION}")
    return value


ApiVersion = Annotated[str, AfterValidator(_our_version)]
"""The one version served."""

DnsName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""An RFC 1123 label, such as an object or namespace name."""


class ObjectMeta(BaseModel):
    """The part of Kubernetes metadata that we read. Never generated into a schema: the API server owns it."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class Condition(Model):
    """One line of status, as Kubernetes' metav1.Condition."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(description="Ready, Reconciling or Stalled.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(description="One CamelCase word, for machines.")
    message: Annotated[str, StringConstraints(max_length=4096)] = Field(description="One sentence, for people.")
    observed_generation: int = Field(ge=0, description="metadata.generation this line speaks of.")
    last_transition_time: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="When status last flipped.", json_schema_extra={"format": "date-time"}
    )


class Column(NamedTuple):
    """A printer column of `kubectl get`; `priority` 1 shows only with -o wide."""

    name: str
    type: str
    json_path: str
    description: str
    priority: int = 0


class Kind(NamedTuple):
    """What a CRD says beyond its schema."""

    kind: str
    plural: str
    scope: Literal["Namespaced", "Cluster"]
    model: type[BaseModel]
    columns: tuple[Column, ...]
    scale: bool
