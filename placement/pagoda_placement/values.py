"""Values as the API server and device plugins write them: JSON, times, versions, and MIG profiles. Pure.

MIG profiles are read by their form, never by a list: sizes differ per part (1g.10gb, 1g.18gb, 1g.23gb), and attributes come as +me, .me or
-me. Only a node's label says how much memory a slice has.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from pagoda_contracts.names import LABEL_GPU_PRODUCT, RESOURCE_MIG_PREFIX

Json = Mapping[str, Any]

_LENGTH: Final = 10
_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True)
_FORM: Final = re.compile(r"(?P<slices>[1-9]\d*)g\.(?P<gb>[1-9]\d*)gb(?P<attributes>[.+-][a-z][a-z.]*)?")
# The device plugin's name for slices that several pods share.
SHARED: Final = ".shared"


def digest(value: Any) -> str:
    """Returns ten hexadecimal digits of a JSON value's canonical form: 40 bits, for a handful of revisions per service."""
    return hashlib.sha256(_CANONICAL.encode(value).encode()).hexdigest()[:_LENGTH]


def stamp(now: float) -> str:
    """Returns a time as the API server writes it, in whole seconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(stamp: str | None) -> float | None:
    """Returns the seconds of a time as the API server writes it; None if absent or unreadable."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else None
    except ValueError:
        return None


def parse_version(text: str) -> tuple[int, int] | None:
    """Returns major and minor; None if the text is no version."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0] or "0"
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


class Profile(NamedTuple):
    """A parsed MIG profile, ordered by size. `attributes` in the spelling of resource names: a `.` for the `+`."""

    gb: int
    slices: int
    attributes: str

    @property
    def name(self) -> str:
        """As in the resource's name, such as 1g.5gb.me."""
        return f"{self.slices}g.{self.gb}gb{self.attributes}"

    @property
    def resource(self) -> str:
        """The extended resource under strategy `mixed`."""
        return RESOURCE_MIG_PREFIX + self.name


def parse_profile(text: str) -> Profile | None:
    """Returns the profile, None if the text is none."""
    found = _FORM.fullmatch(text)
    return Profile(int(found["gb"]), int(found["slices"]), (found["attributes"] or "").replace("+", ".")) if found else None


def of_resource(resource: str) -> Profile | None:
    """Returns the profile of an extended resource, None if it offers no slices."""
    if not resource.startswith(RESOURCE_MIG_PREFIX):
        return None
    return parse_profile(resource.removeprefix(RESOURCE_MIG_PREFIX).removesuffix(SHARED))


def of_product(label: str) -> tuple[str, Profile | None]:
    """Returns the GPU and, under strategy `single`, the profile that the product label names."""
    product, _, profile = label.partition("-MIG-")
    parsed = parse_profile(profile)
    return (product, parsed) if parsed else (label, None)


def alternatives(labels: Iterable[str]) -> list[list[dict[str, Any]]]:
    """Returns node selector expressions for labels of nodes, each list an alternative; several values of one label are one alternative."""
    alone: dict[str, list[str]] = defaultdict(list)
    together = []
    for term in map(_expressions, labels):
        if len(term) == 1:
            alone[term[0]["key"]] += [value for value in term[0]["values"] if value not in alone[term[0]["key"]]]
        else:
            together.append(term)
    return [[{"key": key, "operator": "In", "values": values}] for key, values in alone.items()] + together


def _expressions(label: str) -> list[dict[str, Any]]:
    """Reads `key=value|value,key=value`, or one value of GPU Feature Discovery's product label. A label's value has none of `=|,`."""
    if "=" not in label:
        return [{"key": LABEL_GPU_PRODUCT, "operator": "In", "values": [label]}]
    parts = (part.partition("=") for part in label.split(","))
    return [{"key": key, "operator": "In", "values": values.split("|")} for key, _, values in parts]
