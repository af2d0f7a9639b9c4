"""TenantQuota: who pays, and how much they may use. Cluster-wide, not writable by tenants.

The operator acts on `devices`. Gateways act on the rest, for requests with the tenant's API keys (docs/quota.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, PlainValidator, StringConstraints, WithJsonSchema

from pagoda_contracts.names import API_VERSION
from pagoda_contracts.resources.meta import (
    CONDITIONS,
    ApiVersion,
    Column,
    Condition,
    DnsName,
    Kind,
    Model,
    ObjectMeta,
    Rule,
    ServedName,
    Subdomain,
    broken,
)
from pagoda_contracts.resources.placement import MAX_PRODUCT, PRODUCT_PATTERN, MigProfile, Product
from pagoda_contracts.units import Duration, parse_duration

Count = Annotated[int, Field(ge=0, le=1_000_000_000_000)]
MAX_DEVICES: Final = 100_000
_MAX_PRODUCTS: Final = 32
Devices = Annotated[int, Field(ge=0, le=MAX_DEVICES)]


def _gpus(value: Any) -> int | dict[str, int]:
    """A number, or a number for each product. The API server holds all of it but the form of products."""
    if not isinstance(value, Mapping):
        return _count(value, "")
    if not 1 <= len(value) <= _MAX_PRODUCTS:
        raise broken(f"must name 1 to {_MAX_PRODUCTS} products, got {len(value)}", "")
    wrong = next((name for name in value if not re.fullmatch(PRODUCT_PATTERN, str(name)) or len(name) > MAX_PRODUCT), None)
    if wrong is not None:
        raise broken(f"{wrong!r} is not a product of GPUs; write a name such as H100 or A100-SXM4-80GB", "")
    return {str(name): _count(count, str(name)) for name, count in value.items()}


def _count(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_DEVICES:
        what = f"a number of 0 to {MAX_DEVICES}" + ("" if field else ", or a map of products such as {H100: 8}")
        raise broken(f"{field} must be {what}, got {value!r}".lstrip(), field)
    return value


Gpus = Annotated[
    int | dict[str, int],
    PlainValidator(_gpus),
    WithJsonSchema(
        {
            # A schema has no union of a number and a map. Without a type, each bound holds for values of its own type: the last two refuse
            # all texts and all lists.
            "x-kubernetes-preserve-unknown-fields": True,
            "minimum": 0,
            "maximum": MAX_DEVICES,
            "multipleOf": 1,
            "minProperties": 1,
            "maxProperties": _MAX_PRODUCTS,
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": MAX_DEVICES},
            "minLength": 1,
            "maxLength": 0,
            "minItems": 1,
            "maxItems": 0,
        }
    ),
]
"""Caps of GPUs: of all, or by product."""


class ApiKeysRef(Model):
    """A Secret that holds API keys as digests."""

    namespace: DnsName = Field(description="The Secret's namespace.")
    name: Subdomain = Field(description="The Secret's name.")


class Subjects(Model):
    """What identifies the tenant."""

    namespaces: Annotated[tuple[DnsName, ...], Field(max_length=256)] = Field(
        default=(), description="Namespaces whose replicas `devices` counts.", json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    api_keys_secret_ref: ApiKeysRef | None = Field(
        default=None, description="The Secret, in the gateways' namespace, whose tenant the other fields limit, with all its keys."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(has(self.namespaces) && size(self.namespaces) > 0) || has(self.apiKeysSecretRef)",
            "subjects: name at least one of namespaces and apiKeysSecretRef",
            lambda s: bool(s.namespaces) or s.api_keys_secret_ref is not None,
        ),
    )


class WindowLimit(Model):
    """How much within one window of time."""

    window: Duration = Field(
        description="Length of the window, 1s to 720h, such as 1m or 24h. Windows begin at multiples of it since 1970, UTC."
    )
    requests: Count | None = Field(default=None, description="Requests admitted within it.")
    tokens: Count | None = Field(
        default=None, description="Prompt plus answer tokens of requests admitted within it. An upper bound is reserved at admission."
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "duration(self.window) >= duration('1s') && duration(self.window) <= duration('720h')",
            "limits: window must be 1s to 720h",
            lambda w: 1 <= parse_duration(w.window) <= 720 * 3600,
            "window",
        ),
        Rule(
            "has(self.requests) || has(self.tokens)",
            "limits: each entry sets requests, tokens or both",
            lambda w: w.requests is not None or w.tokens is not None,
        ),
    )


class MigSlices(Model):
    """How many slices of one profile."""

    profile: MigProfile = Field(description="The MIG profile, such as 1g.10gb.")
    count: Devices = Field(description="Slices at most.")


class DeviceCaps(Model):
    """Devices that the tenant's replicas may hold together; starting and terminating ones count."""

    gpus: Gpus | None = Field(
        default=None,
        description="Whole GPUs at most: a number for all, or a number for each product, such as {H100: 8, L4: 16}. A product is a word of "
        "the label nvidia.com/gpu.product. Products that the map does not name are not limited.",
    )
    mig_slices: Annotated[tuple[MigSlices, ...], Field(max_length=32)] = Field(
        default=(),
        description="MIG slices at most, by profile.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["profile"]},
    )
    resource_quota: bool = Field(
        default=False,
        description="Keep a native ResourceQuota with the same limits in the tenant's one namespace; it counts every pod there.",
    )


def _one_namespace(spec: TenantQuotaSpec) -> bool:
    return spec.devices is None or not spec.devices.resource_quota or len(spec.subjects.namespaces) == 1


def _fits(spec: TenantQuotaSpec) -> bool:
    return spec.default_max_tokens is None or spec.max_output_tokens is None or spec.default_max_tokens <= spec.max_output_tokens


class TenantQuotaSpec(Model):
    """Who, and how much. What is absent is not limited."""

    subjects: Subjects = Field(description="What identifies the tenant.")
    models: Annotated[tuple[ServedName, ...], Field(max_length=256)] = Field(
        default=(),
        description="Served names that the tenant may use and see; all if empty.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    model_namespaces: Annotated[tuple[DnsName, ...], Field(max_length=256)] = Field(
        default=(),
        description="Namespaces whose services the tenant may use and see; all if empty.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    limits: Annotated[tuple[WindowLimit, ...], Field(max_length=8)] = Field(
        default=(),
        description="Requests and tokens per window of time. All entries apply.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["window"]},
    )
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(default=None, description="Requests at the same time.")
    max_context_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = Field(
        default=None, description="Prompt plus answer of one request, in tokens."
    )
    max_output_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = Field(
        default=None, description="Answer of one request, in tokens."
    )
    default_max_tokens: Annotated[int, Field(ge=1, le=1_048_576)] | None = Field(
        default=None,
        description="max_tokens of a request that sets none. Without it maxOutputTokens is reserved, or 4096 if tokens are limited.",
    )
    devices: DeviceCaps | None = Field(
        default=None, description="GPUs and MIG slices of the tenant's replicas. If several quotas count a namespace, all of them apply."
    )
    weight: int = Field(
        default=1, ge=1, le=1000, description="Share of a replica among tenants that wait there, relative to the others' weights."
    )
    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher goes first at a replica; equal ones share by weight.")

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.defaultMaxTokens) || !has(self.maxOutputTokens) || self.defaultMaxTokens <= self.maxOutputTokens",
            "defaultMaxTokens must be at most maxOutputTokens",
            _fits,
            "defaultMaxTokens",
        ),
        Rule(
            "!has(self.devices) || !self.devices.resourceQuota || (has(self.subjects.namespaces) && size(self.subjects.namespaces) == 1)",
            "devices: resourceQuota needs exactly one of subjects.namespaces",
            _one_namespace,
            "devices",
        ),
    )


class WindowUsage(Model):
    """Use within the present window."""

    window: Annotated[str, StringConstraints(max_length=48)] = Field(description="The window's length, as in spec.limits.")
    requests: int | None = Field(default=None, ge=0, description="Requests admitted. Absent if they are not limited.")
    tokens: int | None = Field(default=None, ge=0, description="Tokens used or reserved. Absent if they are not limited.")
    requests_left: int | None = Field(default=None, ge=0, description="Requests that may still be admitted.")
    tokens_left: int | None = Field(default=None, ge=0, description="Tokens that may still be used.")


class ProductUsage(Model):
    """GPUs of one product."""

    product: Product = Field(description="The product, as in spec.devices.gpus.")
    used: Devices = Field(description="GPUs in use, and those that a starting replica may get.")
    left: Devices = Field(description="GPUs that are left.")


class Usage(Model):
    """What the tenant uses."""

    summary: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Used of what is allowed in each window, in words."
    )
    windows: Annotated[tuple[WindowUsage, ...], Field(max_length=8)] = Field(default=(), description="Usage for each window.")
    gpus: int | None = Field(default=None, ge=0, description="Whole GPUs in use. Absent if they are not limited by one number.")
    gpu_products: Annotated[tuple[ProductUsage, ...], Field(max_length=_MAX_PRODUCTS)] | None = Field(
        default=None,
        description="GPUs in use and left, by product. Absent if they are not limited by product.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["product"]},
    )
    mig_slices: Annotated[tuple[MigSlices, ...], Field(max_length=32)] = Field(default=(), description="MIG slices in use, by profile.")


class TenantQuotaStatus(Model):
    """What is. Written by the operator alone."""

    observed_generation: int | None = Field(default=None, ge=0, description="The metadata.generation that this status is about.")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=8)] = CONDITIONS
    usage: Usage | None = Field(default=None, description="What the tenant uses.")


class TenantQuota(Model):
    """How much one tenant may use."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["TenantQuota"] = "TenantQuota"
    metadata: ObjectMeta = ObjectMeta()
    spec: TenantQuotaSpec = Field(description="The tenant and its limits. If several quotas concern a tenant, all of them apply.")
    status: TenantQuotaStatus | None = Field(default=None, description="The observed state. Only the operator writes it.")


TENANT_QUOTA = Kind(
    kind="TenantQuota",
    plural="tenantquotas",
    scope="Cluster",
    model=TenantQuota,
    columns=(
        Column("Priority", "integer", ".spec.priority", "Higher goes first"),
        Column("Weight", "integer", ".spec.weight", "Share among tenants that wait"),
        Column("Concurrency", "integer", ".spec.maxConcurrency", "Requests at the same time"),
        Column("Used", "string", ".status.usage.summary", "Used of what is allowed in the present windows"),
        Column("GPUs", "string", ".spec.devices.gpus", "Whole GPUs at most, of all or by product"),
        Column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status", "In force"),
        Column("Age", "date", ".metadata.creationTimestamp", "Age"),
    ),
    scale=False,
)
