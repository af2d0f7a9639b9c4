"""All reasons, and how to find one by a name that a person typed. Pure; used by `pagoda explain`, docs/conditions.md and the Events."""

from __future__ import annotations

import difflib
from functools import cache

from pagoda_contracts.conditions import adapter, health, profile, quota, service
from pagoda_contracts.conditions.types import TYPES, Reason


@cache
def reasons() -> tuple[Reason, ...]:
    """Every reason, by kind and condition, in the order of the tables."""
    found = [value for module in (service, health, quota, adapter, profile) for value in vars(module).values() if isinstance(value, Reason)]
    return tuple(sorted(found, key=lambda reason: (reason.kind, TYPES.index(reason.condition))))


def named(name: str) -> tuple[Reason, ...]:
    """The reasons of that name, in upper or lower case; one for each kind of object that uses it."""
    return tuple(reason for reason in reasons() if reason.name.lower() == name.lower())


def similar(name: str) -> list[str]:
    """Names that a mistyped one may stand for, the closest first."""
    names = {reason.name.lower(): reason.name for reason in reasons()}
    return [names[close] for close in difflib.get_close_matches(name.lower(), names, n=3)]


def warns(name: str) -> bool:
    """Whether an Event with this reason is a warning although nothing is stalled."""
    return any(reason.warning for reason in named(name))
