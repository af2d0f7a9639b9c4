"""The commands of a page, run as a reader runs them: its fenced blocks of shell, in their order, also those within lists.

A comment of HTML before a block, which no reader sees, says what a tour does otherwise: `<!-- tour: not run: why -->`, or
`<!-- tour: exit 1 -->` for a command that is meant to end with this code.
"""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from support.kube.cluster import Cluster, environment

ROOT = Path(__file__).parents[3]
_PART = re.compile(
    r"^#+ (?P<heading>[^\n]+)$|(?:^ *<!-- tour: (?P<how>[^\n]+) -->\n)?^(?P<indent> *)```sh\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """Commands that a reader copies as one, and the heading above them."""

    heading: str
    text: str
    code: int = 0
    not_run: str = ""

    def run(self, cluster: Cluster, words: Mapping[str, str] | None = None) -> str:
        """Their output. `words`: what a reader puts in the place of a word. AssertionError if they end otherwise than the page says."""
        text = self.text
        for word, put in (words or {}).items():
            text = text.replace(word, put)
        own = {"KUBECONFIG": str(cluster.kubeconfig), "KUBECACHEDIR": str(cluster.kubeconfig.parent / "kubectl")}
        reach = own | {"PATH": f"{cluster.bin}{os.pathsep}{os.environ['PATH']}"}
        argv = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(argv, cwd=ROOT, env=environment() | reach, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == self.code, f"{text}\nended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout


def blocks(page: str) -> Iterator[Block]:
    """All of the page's blocks of shell."""
    heading = ""
    for part in _PART.finditer((ROOT / page).read_text()):
        if part["heading"]:
            heading = part["heading"]
            continue
        how = part["how"] or ""
        code = re.fullmatch(r"exit (\d+)", how)
        not_run = re.fullmatch(r"not run: (.+)", how)
        assert not how or code or not_run, f"{page}: {how!r} is nothing that a tour can do"
        yield Block(heading, textwrap.dedent(part["text"]), int(code[1]) if code else 0, not_run[1] if not_run else "")
