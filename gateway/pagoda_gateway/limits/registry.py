"""Registry: which quotas there are, and which of them hold for a tenant. Pure. Filled by watch/quotas.py, asked by requests/limiter.py.

A quota names a Secret of API keys. It holds for the tenant of that Secret, with all keys of the tenant in whichever Secrets. The tenant is
what the Secret's label says. A Secret `pagoda-keys-TENANT` that does not exist (yet) is that tenant's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from pagoda_contracts.resources.apikeys import SECRET_PREFIX

from pagoda_gateway.limits.rules import NO_POLICY, Policy, Rule


class Subject(NamedTuple):
    """A Secret of API keys."""

    namespace: str
    name: str


class Tenants(Protocol):
    """The known Secrets ("namespace/name") and their tenants. `version` changes with them."""

    @property
    def version(self) -> int: ...
    def tenants(self) -> Mapping[str, str]: ...


class Registry:
    """`namespace`: the gateway's own, whose Secrets it reads; None: keys come from a file. `synced` is False until all quotas were read."""

    def __init__(self, tenants: Tenants, namespace: str | None, *, synced: bool = True) -> None:
        self._tenants, self._namespace = tenants, namespace
        self._quotas: dict[str, tuple[Subject, Rule]] = {}
        self._policies: dict[str, Policy] | None = None
        self._version = -1
        self.synced = synced

    def mark_synced(self) -> None:
        """Records that all quotas were read once."""
        self.synced = True

    def put(self, name: str, subject: Subject, rule: Rule) -> None:
        """Adds or replaces a quota."""
        self._quotas[name] = subject, rule
        self._policies = None

    def drop(self, name: str) -> None:
        """Removes a quota."""
        self._quotas.pop(name, None)
        self._policies = None

    def policy(self, tenant: str) -> Policy:
        """Returns what holds for a tenant. An anonymous client ("") has no quota."""
        if self._policies is None or self._version != self._tenants.version:
            self._version, self._policies = self._tenants.version, self._made()
        return self._policies.get(tenant, NO_POLICY) if tenant else NO_POLICY

    def _made(self) -> dict[str, Policy]:
        known, rules = self._tenants.tenants(), defaultdict[str, list[Rule]](list)
        for _, (subject, rule) in sorted(self._quotas.items()):
            if tenant := self._tenant(subject, known):
                rules[tenant].append(rule)
        return {tenant: Policy(tuple(found)) for tenant, found in rules.items()}

    def _tenant(self, subject: Subject, known: Mapping[str, str]) -> str:
        if self._namespace is not None and subject.namespace != self._namespace:
            return ""
        labelled = known.get(f"{subject.namespace}/{subject.name}")
        return labelled or (subject.name.removeprefix(SECRET_PREFIX) if subject.name.startswith(SECRET_PREFIX) else "")
