"""Fetching in a test: a small model of random bytes, tries without a pause between, and the whole route of the component in one call."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pagoda_fetch.core.address import parse
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.progress import Progress
from pagoda_fetch.download.job import Order, fetch
from pagoda_fetch.sources.choose import Surroundings
from pagoda_fetch.volume.lock import myself
from pagoda_fetch.volume.store import Store

# What judges by the clock is far: a process that is stopped for seconds is neither silent nor dead.
QUICK = Limits(reserve=0, silence=60.0, floor=4096, attempts=3, pause=0.001, beat=0.02, dead_after=60.0)
CONFIG = {"model_type": "llama", "hidden_size": 64, "id2label": {str(n): f"LABEL_{n}" for n in range(2000)}}


def model_files(size: int = 3_000_000, seed: int = 7) -> dict[str, bytes]:
    """Weights of random bytes in two files, config and tokenizer."""
    return dict(_model_files(size, seed))


@cache
def _model_files(size: int, seed: int) -> dict[str, bytes]:
    draw = random.Random(seed)
    return {
        "config.json": json.dumps(CONFIG).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "model-00001-of-00002.safetensors": draw.randbytes(size),
        "model-00002-of-00002.safetensors": draw.randbytes(size // 3),
        "README.md": b"# model",
        "pytorch_model.bin": draw.randbytes(1000),
        "modeling_evil.py": b"import os",
    }


TAKEN = ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "tokenizer.json")
LARGE = TAKEN[1]


class Fetcher:
    """A volume and the ways to fill it."""

    def __init__(self, root: Path, hub: str = "http://127.0.0.1:9", **changes: Any) -> None:
        self.root = root / "models"
        self.credentials = root / "credentials"
        self.claims = root / "claims"
        self.limits = replace(QUICK, **changes)
        self.around = Surroundings(hub, self.credentials, self.claims, limits=self.limits)
        self.store = Store(self.root, self.limits.reserve)
        self.seen: list[Progress] = []
        self._reported = asyncio.Event()

    def credential(self, name: str, **files: str) -> str:
        folder = self.credentials / name
        folder.mkdir(parents=True)
        for key, text in files.items():
            (folder / key).write_text(text)
        return name

    async def fetch(self, uri: str = "hf://org/model", revision: str = "", digest: str = "", credential: str = "") -> Path:
        order = Order(parse(uri, revision), digest, credential)
        done = await fetch(order, self.store, self.around, myself(""), self._report)
        return Path(done.path)

    def _report(self, progress: Progress) -> None:
        self.seen.append(progress)
        self._reported.set()

    async def reached(self, phase: str, done: int = 0) -> None:
        """Returns when progress has named this phase, with so many bytes written."""
        while not any(progress.phase == phase and progress.done >= done for progress in self.seen):
            self._reported.clear()
            await self._reported.wait()

    def published(self) -> list[str]:
        return sorted(path.name for path in self.root.glob("sha256-*"))

    def staged(self) -> dict[str, int]:
        """Bytes of what is under way, by file."""
        return {path.name: path.stat().st_size for path in self.root.glob(".staging/*/*")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
