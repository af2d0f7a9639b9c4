"""MIG profiles by their form, never by a list: sizes differ per part (1g.10gb, 1g.18gb, 1g.23gb), attributes come as +me, .me or -me.

Called by whoever reads labels, resource names or a service's `mig.profile`. How much memory a slice has is the node label's to say.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pagoda_contracts.names import RESOURCE_MIG_PREFIX

_FORM: Final = re.compile(r"(?P<slices>[1-9]\d*)g\.(?P<gb>[1-9]\d*)gb(?P<attributes>[.+-][a-z][a-z.]*)?")
_OF: Final = "-MIG-"
# The device plugin's name for slices that several pods share.
SHARED: Final = ".shared"


class Profile(NamedTuple):
    """A parsed profile; its order is that of size. `attributes` in the spelling of resource names: a `.` for the `+`."""

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
    """None where it is no profile."""
    found = _FORM.fullmatch(text)
    return Profile(int(found["gb"]), int(found["slices"]), (found["attributes"] or "").replace("+", ".")) if found else None


def of_resource(resource: str) -> Profile | None:
    """The profile that an extended resource offers slices of."""
    if not resource.startswith(RESOURCE_MIG_PREFIX):
        return None
    return parse_profile(resource.removeprefix(RESOURCE_MIG_PREFIX).removesuffix(SHARED))


def of_product(label: str) -> tuple[str, Profile | None]:
    """The GPU and, under strategy `single`, the profile that the product label names."""
    product, _, profile = label.partition(_OF)
    parsed = parse_profile(profile)
    return (product, parsed) if parsed else (label, None)


def matches(word: str | None, label: str) -> bool:
    """The product label or whole words of it: H100, A100-SXM4 and 80GB are words of NVIDIA-A100-SXM4-80GB, 100 is none."""
    return word is None or f"-{word.lower()}-" in f"-{label.lower()}-"
