"""Rule: what one TenantQuota allows in the data path. Policy: all rules of one tenant, the tightest of each. Pure.

Made by watch/quotas.py from the objects, kept by registry.py, asked by requests/limiter.py for each request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["concurrency", "requests", "tokens"]


class Window(NamedTuple):
    """How much within each window of time. Windows are fixed: they begin at multiples of their length since 1970. `text` is the length as
    the quota says it."""

    text: str
    length_ms: int
    requests: int | None
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Rule:
    """One quota. None and an empty set limit nothing. `namespaces`: of the services that the tenant may use."""

    name: str
    models: frozenset[str] = frozenset()
    windows: tuple[Window, ...] = ()
    concurrency: int | None = None
    context: int | None = None
    output: int | None = None
    default_output: int | None = None
    weight: int = 1
    priority: int = 0
    namespaces: frozenset[str] = frozenset()


class Slot(NamedTuple):
    """One limit that is counted. `window` and `length_ms` are empty for concurrency."""

    rule: str
    kind: Kind
    limit: int
    window: str = ""
    length_ms: int = 0

    def share(self, gateways: int) -> Slot:
        """Returns what each of so many gateways may use, so that all together never use more: it is rounded down."""
        return self if gateways == 1 else self._replace(limit=self.limit // gateways)


def slots(rules: Iterable[Rule]) -> tuple[Slot, ...]:
    """Returns all limits that count requests of a tenant with these rules, in a fixed order."""
    found = []
    for rule in rules:
        if rule.concurrency is not None:
            found.append(Slot(rule.name, "concurrency", rule.concurrency))
        for window in rule.windows:
            if window.requests is not None:
                found.append(Slot(rule.name, "requests", window.requests, window.text, window.length_ms))
            if window.tokens is not None:
                found.append(Slot(rule.name, "tokens", window.tokens, window.text, window.length_ms))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules of a tenant. Each of them holds."""

    rules: tuple[Rule, ...] = ()

    def refusing(self, model: str) -> Rule | None:
        """Returns the first rule that does not allow a model."""
        return next((rule for rule in self.rules if rule.models and model not in rule.models), None)

    def hiding(self, namespace: str) -> Rule | None:
        """Returns the first rule that does not allow the services of a namespace."""
        return next((rule for rule in self.rules if rule.namespaces and namespace not in rule.namespaces), None)

    def shows(self, model: str, namespace: str) -> bool:
        """Whether the tenant may use this name of a service of this namespace."""
        return self.refusing(model) is None and self.hiding(namespace) is None

    @property
    def hides(self) -> bool:
        """Whether the services of some namespaces are hidden from the tenant."""
        return any(rule.namespaces for rule in self.rules)

    @property
    def models(self) -> list[str]:
        """The models that every rule with a list names."""
        lists = [rule.models for rule in self.rules if rule.models]
        return sorted(frozenset.intersection(*lists)) if lists else []

    def tightest(self, field: Literal["context", "output", "default_output"]) -> tuple[int, str] | None:
        """Returns the smallest of these bounds and the name of its quota, None if no rule has one."""
        found = [(bound, rule.name) for rule in self.rules if (bound := getattr(rule, field)) is not None]
        return min(found) if found else None

    @property
    def weight(self) -> int:
        """The smallest weight: a quota narrows."""
        return min((rule.weight for rule in self.rules), default=1)

    @property
    def priority(self) -> int:
        """The lowest priority."""
        return min((rule.priority for rule in self.rules), default=0)


NO_POLICY = Policy()


def needs(slot: Slot, tokens: int) -> int:
    """Returns what a request of so many tokens takes of a limit."""
    return tokens if slot.kind == "tokens" else 1


def refusing(limits: Sequence[Slot], used: Sequence[int], tokens: int) -> int | None:
    """Returns which limit has no room for a request of so many tokens beside what is used; None if all have."""
    full = (at for at, (slot, taken) in enumerate(zip(limits, used, strict=True)) if taken + needs(slot, tokens) > slot.limit)
    return next(full, None)
