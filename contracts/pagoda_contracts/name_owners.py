"""Which object owns a served name that several objects want: the one that has it and has served, else the one that has it, else the
oldest. Pure.

Called by the gateway (routing) and the operator (conditions). The operator writes the names that an object owns into its status, so that
both come to the same result after any restart. A new object never takes traffic from the owner, even if it is older. It gets the name when
the owner is deleted or no longer wants it. An owner that has never served keeps it only from objects of its own namespace: any tenant could
take any name by a service that cannot start. Of several that start under one name, the first that serves has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


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


def resolve(wanted: Iterable[ServedName]) -> dict[str, ServedName]:
    """Returns the owner of each name."""
    owners: dict[str, ServedName] = {}
    for candidate in wanted:
        owner = owners.get(candidate.name)
        if owner is None or candidate.rank < owner.rank:
            owners[candidate.name] = candidate
    return owners
