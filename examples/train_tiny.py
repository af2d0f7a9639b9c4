#!/usr/bin/env python
"""Trains the tiny Llama of the examples, or finds it in the cache, and prints its directory: `MODEL=$(python examples/train_tiny.py)`.

Used by `make demo` and by tests. The model knows the answers of `pydoc_answers.questions()` by heart and nothing else. Nothing but the
directory goes to stdout; torch is imported only where there is something to train. With `--lora` it is the directory of three LoRA
adapters of the model (`tiny_adapters.py`).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydoc_answers import QA, TOPICS, questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiny.learn import Progress

REPORT = "training.json"
TRAINING_CODE = Path(__file__).parent / "tiny"
LORA_CODE = Path(__file__).parent / "tiny_adapters.py"


class Text(NamedTuple):
    """All that the model and its tokenizer learn from."""

    corpus: tuple[str, ...]
    lessons: tuple[QA, ...]


def python_text(topics: Mapping[str, str] = TOPICS) -> Text:
    """The running interpreter's own documentation."""
    lessons = tuple(questions(topics))
    return Text((*(topics[name] for name in sorted(topics)), *(text for lesson in lessons for text in lesson)), lessons)


def cache_key(text: Text) -> str:
    """Changes with the text, and with the code that trains, where the hyperparameters live as well."""
    digest = hashlib.sha256(json.dumps(text).encode())
    for source in sorted(TRAINING_CODE.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


def cached_model(quiet: bool = False) -> Path:
    """The model's directory; trains it first where the cache lacks it. Two callers at once train once."""
    text = python_text()
    key = cache_key(text)
    return _cached(f"tiny-{key}", lambda folder: _train_model(folder, text, quiet))


def cached_adapters(quiet: bool = False) -> Path:
    """The directory of the model's LoRA adapters, one below it for each style."""
    model = cached_model(quiet)
    key = hashlib.sha256(LORA_CODE.read_bytes()).hexdigest()[:12]
    return _cached(f"{model.name}-lora-{key}", lambda folder: _train_adapters(folder, model, quiet))


def _cached(name: str, train: Callable[[Path], None]) -> Path:
    """`train` fills a directory, which appears whole or not at all: written beside its place, then renamed."""
    models = Path(os.environ.get("PAGODA_CACHE") or "~/.cache/pagoda").expanduser() / "models"
    target = models / name
    if target.is_dir():
        return target
    models.mkdir(parents=True, exist_ok=True)
    with (models / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=models) as scratch:
                folder = Path(scratch) / name
                folder.mkdir()
                train(folder)
                _readable(folder)
                folder.rename(target)
    return target


def _train_model(folder: Path, text: Text, quiet: bool) -> None:
    import tiny.train  # takes seconds, for torch; not paid where the cache has the model

    with _display("teaching a tiny Llama", quiet) as show:
        report = tiny.train.train(folder, text.corpus, text.lessons, show)
    (folder / REPORT).write_text(json.dumps({"hash": cache_key(text), **report}, indent=2) + "\n", encoding="utf-8")


def _train_adapters(folder: Path, model: Path, quiet: bool) -> None:
    import tiny_adapters

    with _display("teaching its adapters", quiet) as show:
        tiny_adapters.train_adapters(model, folder, [lesson.question for lesson in python_text().lessons], show)


@contextmanager
def _display(what: str, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A progress bar on stderr, over the answers known by heart rather than the steps, which end early."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task(what, total=1.0, now="")

        def show(progress: Progress) -> None:
            exact = progress.knowledge.exact
            now = f"{exact:4.0%} by heart, loss {progress.loss:.4f}, step {progress.step}"
            bar.update(task, completed=exact, now=now)

        yield show


def _readable(folder: Path) -> None:
    """Any user's container reads the model, whatever the umask here."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Trains (or finds in the cache) the tiny Llama of the examples; prints its directory.")
    parser.add_argument("--out", type=Path, metavar="DIR", help="copy the model to DIR, which must not exist, and print DIR")
    parser.add_argument("--lora", action="store_true", help="train (or find) LoRA adapters of the model, and print their directory")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    args = parser.parse_args()
    if args.out is not None and args.out.exists():
        parser.error(f"--out {args.out}: exists already; accepted: a path that does not")
    # Threads that spin at barriers starve each other beside other work: with two busy neighbours on 2 cores, sleeping halved the time.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    model = cached_adapters(args.quiet) if args.lora else cached_model(args.quiet)
    if args.out is not None:
        model = Path(shutil.copytree(model, args.out))
    sys.stdout.write(f"{model}\n")


if __name__ == "__main__":
    main()
