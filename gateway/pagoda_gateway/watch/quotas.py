"""Reads TenantQuotas from the cluster or from a file and keeps the registry as they say. Started by serve/process.py.

The file holds objects as they are applied, as JSON: `{"quotas": [{"metadata": {"name": "team-a"}, "spec": {…}}]}`. The Secret that a
quota names there is `pagoda-keys-TENANT`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from pagoda_contracts.names import GROUP, VERSION
from pagoda_contracts.resources.tenant import TENANT_QUOTA, TenantQuotaSpec
from pagoda_contracts.units import parse_duration
from pagoda_kube.cache import Cache, Changed, Item, Key
from pagoda_kube.reflector import Api, Kind, Reflector, Signs
from pydantic import ValidationError

from pagoda_gateway.limits.registry import Registry, Subject
from pagoda_gateway.limits.rules import Rule, Window

log = structlog.get_logger()


class Quota(msgspec.Struct, frozen=True):
    """What is kept of a TenantQuota: `fault` says why its spec cannot be read; `subject` is None if it limits no keys."""

    subject: Subject | None = None
    rule: Rule = Rule("")
    fault: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta
    spec: dict[str, Any] = {}


class _File(msgspec.Struct):
    quotas: tuple[_Object, ...]


def rule_of(name: str, spec: TenantQuotaSpec) -> Rule:
    """What a quota allows in the data path."""
    windows = tuple(Window(one.window, round(parse_duration(one.window) * 1000), one.requests, one.tokens) for one in spec.limits)
    bounds = (spec.max_concurrency, spec.max_context_tokens, spec.max_output_tokens, spec.default_max_tokens)
    return Rule(
        name,
        frozenset(spec.models),
        windows,
        *bounds,
        weight=spec.weight,
        priority=spec.priority,
        namespaces=frozenset(spec.model_namespaces),
    )


def _quota(read: _Object) -> Quota:
    try:
        spec = TenantQuotaSpec.model_validate(read.spec, extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Quota(fault=f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    ref = spec.subjects.api_keys_secret_ref
    return Quota(Subject(ref.namespace, ref.name) if ref is not None else None, rule_of(read.metadata.name, spec))


def read_quota(raw: msgspec.Raw) -> Item[Quota]:
    """A TenantQuota as the API server writes it."""
    read = msgspec.json.decode(raw, type=_Object)
    return Item(Key("", read.metadata.name), read.metadata.resource_version, _quota(read))


QUOTAS: Final = Kind(f"/apis/{GROUP}/{VERSION}/{TENANT_QUOTA.plural}", read_quota)


async def watch_quotas(api: Api, kind: Kind[Quota], registry: Registry) -> None:
    """Keeps the registry as the cluster says, until it is cancelled. While the API server is away, it stays as it is."""
    await Reflector(api, kind, Cache[Quota](_changes(registry)), Signs(registry.mark_synced)).run()


def _changes(registry: Registry) -> Changed[Quota]:
    def changed(key: Key, _before: Quota | None, after: Quota | None) -> None:
        if after is not None and after.fault:
            log.error("a TenantQuota cannot be read; what was read of it before holds on", quota=key.name, why=after.fault)
        elif after is None or after.subject is None:
            registry.drop(key.name)
        else:
            registry.put(key.name, after.subject, after.rule)

    return changed


def read_quota_file(path: Path, registry: Registry) -> None:
    """Fills the registry. ValueError names what is wrong, OSError a file that cannot be read."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: it is not JSON of TenantQuotas: {error}") from error
    for read in file.quotas:
        quota = _quota(read)
        if quota.fault or quota.subject is None:
            raise ValueError(f"{path}: quota {read.metadata.name!r}: {quota.fault or 'subjects.apiKeysSecretRef is missing'}")
        registry.put(read.metadata.name, quota.subject, quota.rule)
