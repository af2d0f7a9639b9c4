"""What all kinds share: the frozen base with camelCase aliases, cross-field rules, metadata and conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from pagoda_contracts.names import API_VERSION, GROUP


class Rule(NamedTuple):
    """A cross-field rule, declared once: CEL for the API server, `holds` for Python, so that verdicts cannot drift.

    `field` is the wire name of the field that the refusal points at; the object itself if empty.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool]
    field: str = ""


class Transition(NamedTuple):
    """A rule over an update: CEL with `oldSelf`, `holds(new, old)` for Python. Not asked when the object is new."""

    cel: str
    message: str
    holds: Callable[[Any, Any], bool]
    field: str = ""


RULE_BROKEN: Final = "rule"
"""Type of the pydantic error that a broken rule raises; its context holds `field`."""


def broken(message: str, field: str) -> PydanticCustomError:
    """Returns the error that a refused value raises; `field`: below the value, empty for the value itself."""
    return PydanticCustomError(RULE_BROKEN, "{message}", {"message": message, "field": field})


@cache
def _lists_without_repeats(model: type[BaseModel]) -> tuple[tuple[str, str, Any], ...]:
    """Name, alias and keys of the fields that are lists of type map or set."""
    marked = [(name, field.alias or name, field.json_schema_extra) for name, field in model.model_fields.items()]
    return tuple(
        (name, alias, extra.get("x-kubernetes-list-map-keys"))
        for name, alias, extra in marked
        if isinstance(extra, dict) and "x-kubernetes-list-type" in extra
    )


def _check_unique(name: str, entries: Sequence[Any], keys: Any) -> None:
    """What the API server holds of lists that it treats as a set or a map."""
    seen = set()
    for entry in entries:
        mark = getattr(entry, keys[0]) if keys else entry
        if mark in seen:
            where = f" in {keys[0]}" if keys else ""
            raise broken(f"{name}: {mark!r} occurs twice; entries must differ{where}", name)
        seen.add(mark)


class Model(BaseModel):
    """Frozen, camelCase on the wire, unknown fields refused (a reader of live objects passes `extra="ignore"`)."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)
    rules: ClassVar[tuple[Rule, ...]] = ()
    transitions: ClassVar[tuple[Transition, ...]] = ()

    @model_validator(mode="after")
    def _obey_rules(self) -> Self:
        for rule in type(self).rules:
            if not rule.holds(self):
                raise broken(rule.message, rule.field)
        for name, alias, keys in _lists_without_repeats(type(self)):
            _check_unique(alias, getattr(self, name) or (), keys)
        return self

    def wire(self) -> dict[str, Any]:
        """The object as it crosses a wire: aliases, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _our_version(value: str) -> str:
    if value != API_VERSION:
        raise ValueError(f"apiVersion must be {API_VERSION}, got {value!r}")
    return value


_DEEPEST: Final = 64


def _no_deeper(template: dict[str, Any]) -> dict[str, Any]:
    """A pod's own fields have 12 levels. The API server stores up to 10,000 where it has no schema, more than most readers bear."""
    level: list[Any] = [template]
    for _ in range(_DEEPEST):
        inner = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in inner if isinstance(value, dict | list)]
    if level:
        raise broken(f"nested deeper than {_DEEPEST} levels", "")
    return template


PodTemplate = Annotated[dict[str, Any], AfterValidator(_no_deeper)]
"""A part of a pod template: metadata and spec."""

ApiVersion = Annotated[str, AfterValidator(_our_version)]
"""The one version served."""

DnsName = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""An RFC 1123 label, such as a namespace or claim name."""

SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
Subdomain = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=SUBDOMAIN)]
"""An RFC 1123 subdomain, such as the name of most objects."""

ServedName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]
"""A name that clients put into `model`."""

LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$")]
Labels = Annotated[dict[str, LabelValue], Field(max_length=32)]
"""Label keys and values. A structural schema cannot bound keys; the API server's own label checks do where they are used."""


class ObjectMeta(BaseModel):
    """The part of Kubernetes metadata that we read. Never generated into a schema: the API server owns it."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    name: str = ""
    generate_name: str = ""
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
    observed_generation: int = Field(ge=0, description="The metadata.generation that this condition is about.")
    last_transition_time: Annotated[str, StringConstraints(max_length=64)] = Field(
        description="When the status last changed.", json_schema_extra={"format": "date-time"}
    )


MAP_BY_NAME: Final[dict[str, Any]] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}

CONDITIONS: Final[Any] = Field(
    default=(),
    description="Ready, Reconciling, Stalled (kstatus).",
    json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
)
"""The field `conditions` of every status."""


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
    short_names: tuple[str, ...] = ()

    @property
    def resource(self) -> str:
        """The name for kubectl that no kind of another group has."""
        return f"{self.plural}.{GROUP}"
