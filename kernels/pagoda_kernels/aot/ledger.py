"""The ledger: facts of every shipped binary, kept in the repository, so that a change of them is seen where it is made. Pure.

{"triton": "3.9.0", "kernels": {NAME: {ARCH: {"shared": 0, …}}}, "proofs": {NAME: "…"}}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pagoda_kernels.aot.facts import Facts

TOLERATED: Final = {"shared": 0.0, "registers": 0.1, "loads": 0.25, "wide": 0.25, "converts": 0.25, "instructions": 0.25}
"""A figure may drift by this share of what the ledger says. Every other one must stay as it is."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """`kernels`: facts by the export's name and the arch. They are those of one version of Triton. `proofs`: see `proof`."""

    triton: str
    kernels: Mapping[str, Mapping[str, Facts]]
    proofs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parsed(cls, text: str) -> Ledger:
        """ValueError or TypeError where `text` is no ledger."""
        document = json.loads(text)
        return cls(
            document["triton"],
            {name: {arch: Facts(**facts) for arch, facts in archs.items()} for name, archs in document["kernels"].items()},
            document.get("proofs", {}),
        )

    def text(self) -> str:
        """One line per binary."""
        kernels = ",\n".join(f"  {json.dumps(name)}: {{\n{_archs(archs)}\n  }}" for name, archs in sorted(self.kernels.items()))
        body = f"\n{kernels}\n " if kernels else ""
        proofs = json.dumps(dict(sorted(self.proofs.items())))
        return f'{{\n "triton": {json.dumps(self.triton)},\n "kernels": {{{body}}},\n "proofs": {proofs}\n}}\n'

    def proves(self, name: str, identity: str) -> bool:
        """Whether the facts of `name` are those found when an export of `identity` was compiled: compiling again would find the same."""
        return name in self.kernels and self.proofs.get(name) == proof(identity, self.kernels[name])


def proof(identity: str, archs: Mapping[str, Facts]) -> str:
    """Binds what was compiled to what was found, so that a change of either is seen without compiling."""
    found = json.dumps([identity, {arch: asdict(facts) for arch, facts in archs.items()}], sort_keys=True)
    return hashlib.sha256(found.encode()).hexdigest()[:16]


def _archs(archs: Mapping[str, Facts]) -> str:
    return ",\n".join(f"    {json.dumps(arch)}: {json.dumps(asdict(facts))}" for arch, facts in archs.items())


def drift(kept: Ledger, now: Ledger) -> list[str]:
    """In what `now` differs from the ledger that is `kept`, beyond what is tolerated: a line for each difference."""
    if kept.triton != now.triton:
        return [f"the ledger is of Triton {kept.triton}, installed is {now.triton}"]
    before, after = _flat(kept), _flat(now)
    out = [f"{name}: no longer exported" for name in before.keys() - after.keys()]
    out += [f"{name}: not in the ledger" for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        out += [f"{name}: {line}" for line in _differences(asdict(before[name]), asdict(after[name]))]
    return sorted(out)


def _flat(ledger: Ledger) -> dict[str, Facts]:
    return {f"{name} on {arch}": facts for name, archs in ledger.kernels.items() for arch, facts in archs.items()}


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Of products of matrices only the class counts: how often one stands in the code is part of `instructions`."""
    return [
        f"{key} was {old}, is {after[key]}"
        for key, old in before.items()
        if (set(old) != set(after[key]) if isinstance(old, dict) else not _near(key, old, after[key]))
    ]


def _near(key: str, old: int | None, new: int | None) -> bool:
    if old is None or new is None:
        return old == new
    return abs(new - old) <= TOLERATED.get(key, 0) * old
