"""`python -P -m pagoda_kernels.aot [--check | --bands]`: compiles every export of the GPU ops for every arch, without a GPU.

Refuses what does not compile, does not fit, spills, or leaves its bands (exports.py). Then it rewrites the ledger; with --check it
compares, writes nothing, and compiles only what the ledger does not prove; with --bands it leaves the ledger alone, for a version of
Triton that is not the locked one.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import triton
from triton import knobs

from pagoda_kernels.aot.compiled import NotCompiled, facts_of, identity
from pagoda_kernels.aot.facts import Facts, refusals
from pagoda_kernels.aot.ledger import Ledger, drift, proof
from pagoda_kernels.exports import Export


@dataclass(frozen=True, slots=True)
class _Result:
    """Of one binary: its facts, or None where there is none, and why it must not ship."""

    name: str
    arch: str
    facts: Facts | None
    refusals: list[str]


def main(arguments: Sequence[str]) -> int:
    """0: all keep their bands, and the ledger is up to date; 1: the lines on stderr say what is not."""
    options = _parser().parse_args(arguments)
    if knobs.runtime.interpret:
        sys.stderr.write("nothing is compiled while TRITON_INTERPRET is set\n")
        return 1
    exports = _exports(options.package)
    kept = Ledger.parsed(options.ledger.read_text(encoding="utf-8")) if options.check else Ledger("", {})
    proven = {export.name for export in exports if kept.proves(export.name, identity(export))}
    results = [_Result(name, arch, facts, []) for name in proven for arch, facts in kept.kernels[name].items()]
    results += _judged([export for export in exports if export.name not in proven])
    lines = [f"{one.name} on {one.arch}: {line}" for one in results for line in one.refusals]
    if not (lines or options.bands):
        lines = _recorded(_ledger(exports, results), kept, options.ledger, check=options.check)
    sys.stderr.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -P -m pagoda_kernels.aot", description="Compile the GPU ops without a GPU and judge them."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the ledger, write nothing")
    what.add_argument("--bands", action="store_true", help="without the ledger")
    parser.add_argument("--package", default="pagoda_kernels.gpu", help="whose modules have EXPORTS")
    parser.add_argument("--ledger", type=Path, default=Path(__file__).parent.parent / "ledger.json")
    return parser


def _exports(package: str) -> list[Export]:
    """All of the modules of `package`. ValueError where two have one name."""
    out = [export for module in _modules(package) for export in getattr(importlib.import_module(module), "EXPORTS", ())]
    names = [export.name for export in out]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"two exports have one name: {sorted(twice)}")
    return out


def _modules(package: str) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    for module in pkgutil.walk_packages(spec.submodule_search_locations if spec else [], f"{package}."):
        yield module.name


def _judged(exports: Sequence[Export]) -> list[_Result]:
    """The compiler's passes and its tools run outside of Python's lock."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda task: _judge(*task), [(export, arch) for export in exports for arch in export.archs]))


def _judge(export: Export, arch: str) -> _Result:
    try:
        facts = facts_of(export, arch)
    except NotCompiled as error:
        return _Result(export.name, arch, None, [f"does not compile: {error}"])
    return _Result(export.name, arch, facts, refusals(arch, facts, export.bands))


def _ledger(exports: Sequence[Export], results: Sequence[_Result]) -> Ledger:
    kernels: dict[str, dict[str, Facts]] = {}
    for one in results:
        if one.facts is not None:
            kernels.setdefault(one.name, {})[one.arch] = one.facts
    proofs = {export.name: proof(identity(export), kernels[export.name]) for export in exports if export.name in kernels}
    return Ledger(triton.__version__, kernels, proofs)


def _recorded(now: Ledger, kept: Ledger, path: Path, *, check: bool) -> list[str]:
    """The ledger, rewritten or compared: what is wrong with it."""
    if not check:
        path.write_text(now.text(), encoding="utf-8")
        return []
    differences = drift(kept, now)
    return [*differences, f"{path} is out of date: run make generate"] if differences else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
