"""The words by which documents name kinds to kubectl: `kubectl get pods,services -A` has pods and services."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PAGES = ("README.md", "*/README.md", "docs/**/*.md", "examples/**/*.md", "charts/pagoda/**/*.txt", "charts/pagoda/**/*.yaml")
# Programs print commands, too.
_PROGRAMS = tuple(f"{part}/pagoda_{part}/**/*.py" for part in ("cli", "contracts", "operator", "gateway"))
# A command ends at its code span, at the next command, or with its line.
_COMMAND = re.compile(r"kubectl(?P<words>( +[^\s`|;&)]+)+)")
_VERBS = frozenset(("get", "describe", "delete", "patch", "wait", "annotate", "label", "scale", "explain", "edit", "port-forward"))
_WITH_VALUE = frozenset(("-n", "-l", "-o", "-L", "-f", "-p", "-c", "--type", "--namespace"))
_KIND = re.compile(r"[a-z][a-z.-]+")


def kinds() -> dict[str, set[str]]:
    """Returns the files that name a kind, by the word."""
    found: dict[str, set[str]] = defaultdict(set)
    for pattern in _PAGES + _PROGRAMS:
        for page in ROOT.glob(pattern):
            for word in _named(page.read_text()):
                found[word].add(str(page.relative_to(ROOT)))
    return found


def _named(text: str) -> Iterator[str]:
    for command in _COMMAND.finditer(text):
        verb, kind = (*_positional(command["words"].split()), "", "")[:2]
        if verb in _VERBS:
            yield from (word for one in kind.split(",") if _KIND.fullmatch(word := one.partition("/")[0]))


def _positional(words: list[str]) -> Iterator[str]:
    for before, word in zip(["", *words], words, strict=False):
        if not word.startswith("-") and before not in _WITH_VALUE:
            yield word
