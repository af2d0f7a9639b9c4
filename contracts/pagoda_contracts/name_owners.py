"""Which object owns a served name that several objects want: the one that has it and has served, else the one that has it, else the
oldest. Pure.

Called by the gateway (routing) and the operator (conditions). The operator writes the names that an object owns into its status, so that
both come to the same result after any restart. A new object never takes traffic from the owner, even if it is older. It gets the name when
the owner is deleted or no longer wants it. An owner that has never served keeps it only from objects of its own namespace: any tenant could
take any name by a service that cannot start. Of several that start under one name, the first that serves has it.

The installation may reserve names for namespaces (`reservedNames` of the chart): objects elsewhere never own them.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from pydantic import TypeAdapter, ValidationError


class ServedName(NamedTuple):
    """`owner` ("namespace/name" of an object with this `uid`, created at this RFC 3339 time) wants to be served as `name`."""

    name: str
    created: str
    uid: str
    owner: str
    # Whether its status says that it owns the name.
    owns: bool = False
    # Whether it has ever served.
    served: bool = True

    @property
    def namespace(self) -> str:
        """Of the object."""
        return self.owner.partition("/")[0]

    @property
    def rank(self) -> tuple[bool, bool, str, str]:
        """The smallest is the owner: it owns the name already and has served, or owns it, or it is older. Kubernetes writes
        creationTimestamp in UTC with whole seconds, so text order is time order."""
        return not (self.owns and self.served), not self.owns, self.created, self.uid

    def keeps_from(self, namespace: str) -> bool:
        """Whether an owner keeps the name from the objects of this namespace."""
        return self.namespace == namespace or self.served


class Reserved(NamedTuple):
    """Patterns of names, the most specific first, each with the namespaces whose objects may have such names."""

    rules: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def why_not(self, name: str, namespace: str) -> str:
        """Why an object of this namespace may not have the name; empty if it may. The longest pattern that matches decides."""
        for pattern, namespaces in self.rules:
            if fnmatchcase(name, pattern):
                allowed = f"namespaces {', '.join(namespaces)}" if namespaces else "no namespace"
                return "" if namespace in namespaces else f"{name!r} is reserved for {allowed} by reservedNames {pattern!r}"
        return ""


NOTHING_RESERVED: Final = Reserved()
_RULES: Final = TypeAdapter(dict[str, tuple[str, ...]])


def read_reserved(text: str) -> Reserved:
    """Returns what the chart writes: a JSON object of lists of namespaces, by pattern. A `*` stands for any characters."""
    try:
        rules = _RULES.validate_json(text)
    except ValidationError as error:
        raise ValueError(f'{text!r} does not reserve names; it must be JSON such as {{"prod-*": ["team-a"]}}') from error
    ordered = sorted(rules, key=lambda pattern: (-len(pattern.replace("*", "")), pattern))
    return Reserved(tuple((pattern, rules[pattern]) for pattern in ordered))


def resolve(wanted: Iterable[ServedName], reserved: Reserved = NOTHING_RESERVED) -> dict[str, ServedName]:
    """Returns the owner of each name that has one."""
    owners: dict[str, ServedName] = {}
    for candidate in wanted:
        owner = owners.get(candidate.name)
        better = owner is None or candidate.rank < owner.rank
        if better and not reserved.why_not(candidate.name, candidate.namespace):
            owners[candidate.name] = candidate
    return owners
