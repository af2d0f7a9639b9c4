"""`make lint`, `make words`: how often pages and messages break the rules of judges/words.py; the recorded numbers only fall.

A page has a number of its own. The string literals of a component have one together, so that a file may move. A new page must be clean.
`words [--record] [--list KEY …]`: --record writes numbers that have fallen, --list prints the places of pages or components.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from support.judges.source_rules import COMPONENTS
from support.judges.words import page, source

ROOT: Final = Path(__file__).parents[3]
RECORD: Final = "tests/data/words.json"
PAGES: Final = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
_SHOWN: Final = 100
Found = Mapping[str, list[str]]


def judged(root: Path) -> dict[str, list[Path]]:
    """Page or component → its files."""
    pages = {str(path.relative_to(root)): [path] for pattern in PAGES for path in sorted(root.glob(pattern))}
    sources = {component: sorted((root / component).rglob("*.py")) for component in COMPONENTS}
    return pages | {component: [path for path in paths if "pb" not in path.parts] for component, paths in sources.items()}


def found(root: Path) -> dict[str, list[str]]:
    """Page or component → its places, each as a line for people."""
    return {key: [line for path in paths for line in _lines(root, path)] for key, paths in judged(root).items()}


def _lines(root: Path, path: Path) -> list[str]:
    places = (page if path.suffix == ".md" else source)(path.read_text())
    return [f"{path.relative_to(root)}:{place.line}: {place.rule}: {_short(place.text)}" for place in places]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def risen(places: Found, recorded: Mapping[str, int]) -> list[str]:
    """What fails: for each page or component that has more places than are recorded, its number and its places."""
    return [
        line
        for key, lines in places.items()
        if len(lines) > recorded.get(key, 0)
        for line in (*lines, f"{key}: {len(lines)} places, at most {recorded.get(key, 0)} are allowed")
    ]


def lowered(places: Found, recorded: Mapping[str, int]) -> dict[str, int]:
    """The numbers to record: none is higher than before, and what is clean or gone has none."""
    least = {key: min(len(places.get(key, ())), most) for key, most in recorded.items()}
    return {key: count for key, count in sorted(least.items()) if count}


def main(arguments: list[str], root: Path = ROOT) -> int:
    """The exit code: 1 if a number has risen."""
    parser = argparse.ArgumentParser(prog="words", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the numbers that have fallen")
    parser.add_argument("--list", nargs="+", default=[], metavar="KEY", help="print the places of these pages or components")
    options = parser.parse_args(arguments)
    places, recorded = found(root), json.loads((root / RECORD).read_text())
    for key in options.list:
        print("\n".join(places.get(key, (f"{key}: no place breaks a rule",))))
    if faults := risen(places, recorded):
        print("\n".join(faults), file=sys.stderr)
        return 1
    least = lowered(places, recorded)
    if options.record:
        (root / RECORD).write_text(json.dumps(least, indent=1) + "\n")
    elif least != recorded:
        print(f"words: {sum(recorded.values()) - sum(least.values())} places fewer than recorded; `make words` records that")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
