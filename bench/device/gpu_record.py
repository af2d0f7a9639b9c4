"""The document that bench/gpu.py writes after each measurement: what is in it is not measured again, what is left is ordered. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gpu_numbers import Ceilings

SIZES = ("large", "knee", "small")
_REMARK = 100  # characters; the document has all of it
ENDED = "the process ended during this measurement"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One entry of the document. `rank`: smaller ones tell more and come first. `run` takes the ceilings of this process.

    `expected_s`: how long it takes before one of its kind was measured; after `longest_s` something hangs. Its kind is the name's first
    word. `compile` fills the cache of compiled kernels for it."""

    name: str
    rank: tuple[int, ...]
    run: Callable[[Ceilings], dict[str, Any]]
    expected_s: float = 60.0
    longest_s: float = 240.0
    compile: Callable[[], None] | None = None

    @property
    def kind(self) -> str:
        return self.name.replace("/", " ").split(" ")[0]


class OtherDevice(Exception):
    """The document holds measurements of another device or other versions."""


@dataclass(slots=True)
class Record:
    """`path` None: nothing is kept. `runs` are the processes that measured, with their ceilings; each result names its run."""

    path: Path | None
    device: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None, device: dict[str, Any]) -> Record:
        """Raises OtherDevice. What an earlier process began and did not end is an error from now on, so that it is not met again."""
        record = cls(path, device)
        if path is None or not path.exists():
            return record
        found = json.loads(path.read_text())
        if found["device"] != device:
            raise OtherDevice(f"{path} was measured on {found['device']}, this is {device}: give another --out")
        record.runs, record.results = found["runs"], found["results"]
        if begun := found.get("begun"):
            record.results[begun] = {"error": ENDED}
        return record

    def ran(self, run: dict[str, Any]) -> None:
        """A process begins to measure, with these ceilings."""
        self.runs.append(run)
        self._write({})

    def begin(self, name: str) -> None:
        self._write({"begun": name})

    def add(self, name: str, result: dict[str, Any]) -> None:
        self.results[name] = {**result, "run": len(self.runs) - 1}
        self._write({})

    def document(self) -> dict[str, Any]:
        return {"device": self.device, "runs": self.runs, "results": self.results}

    def _write(self, more: dict[str, Any]) -> None:
        if self.path is None:
            return
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(json.dumps(self.document() | more, indent=1) + "\n")
        beside.replace(self.path)


def chosen(all_of_them: Iterable[Measurement], done: Iterable[str], only: Sequence[str]) -> list[Measurement]:
    """What is left to do, the most telling first. `only`: patterns, of which one must match a name or a part of it; none: all."""
    left = [one for one in all_of_them if one.name not in set(done) and matches(one.name, only)]
    return sorted(left, key=lambda one: one.rank)


def matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, f"*{pattern}*") for pattern in patterns)


def fits(one: Measurement, left_s: float, longest_s: Mapping[str, float]) -> bool:
    """Whether it ends in time, if it takes as long as the longest of its kind so far."""
    return longest_s.get(one.kind, one.expected_s) <= left_s


def table(results: dict[str, dict[str, Any]]) -> str:
    """One line per measurement of a kernel: ours, then each baseline below it."""
    head = ("measurement", "us", "% of", "floor by", "rate", "error", "spread %", "ours", "remark")
    lines = [head, *(line for name, result in results.items() if "sides" in result or "error" in result for line in _lines(name, result))]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def _lines(name: str, result: dict[str, Any]) -> Iterable[tuple[str, ...]]:
    if "error" in result:
        yield (name, *[""] * 7, result["error"][:_REMARK])
        return
    for index, (side, found) in enumerate(result["sides"].items()):
        yield (
            name if index == 0 else f"  {side}",
            _number(found.get("us"), 2),
            _number(found.get("percent"), 1),
            result.get("limit", ""),
            _rate(found, result.get("limit", "")),
            "" if found.get("error") is None else f"{found['error']:.1e}",
            _number(found.get("spread_percent"), 1),
            _number(found.get("speed"), 2),
            (found.get("failed") or "")[:_REMARK] or found.get("verdict") or ("L2-resident" if result.get("l2_resident") else ""),
        )


def summary(result: Mapping[str, Any]) -> str:
    """Of ours, in a few words."""
    found = next(iter(result.get("sides", {}).values()), result)
    words = [f"{found[name]} {unit}" for name, unit in (("us", "us"), ("percent", "%")) if name in found]
    return found.get("failed") or result.get("error") or ", ".join([*words, _rate(found, result.get("limit", ""))])


def _rate(found: Mapping[str, Any], limit: str) -> str:
    name, unit = ("tflop_s", "TFLOP/s") if limit == "flops" else ("gb_s", "GB/s")
    return f"{found[name]:.0f} {unit}" if name in found else ""


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
