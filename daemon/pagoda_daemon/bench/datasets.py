"""What is asked: prompts drawn at random, or read from a file. Called by `command`.

`random` needs no tokenizer: prompts are token ids, which /v1/completions takes. For a chat endpoint, or where a prefix of words is
needed, its words are drawn from the model's own vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer

from pagoda_daemon.core.errors import ConfigRejected

NAMES: Final = ("random", "sharegpt", "custom")
_LEAST_TURN: Final = 4  # tokens: vLLM leaves out conversations that are shorter, or longer than the next two
_MOST_PROMPT, _MOST_TOGETHER = 1024, 2048
_DEFAULT_OUTPUT: Final = 256


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: text or token ids, how many tokens it has (0: not known here), and how many are to be generated."""

    prompt: str | list[int]
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Lengths:
    """Of random prompts and their answers, in tokens. `range_ratio` r draws each between 1-r and 1+r of it; all prompts begin with the
    same `prefix` tokens, which come on top."""

    input: int = 1024
    output: int = 128
    range_ratio: float = 0.0
    prefix: int = 0


def read_tokenizer(model: str) -> Tokenizer:
    """Of a model's directory, or a tokenizer.json."""
    path = Path(model)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigRejected(f"--tokenizer: {model} must be a model's directory or its tokenizer.json, and there is none; give --tokenizer")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust side raises bare Exception
        raise ConfigRejected(f"--tokenizer: {path} cannot be read: {error}") from error


def drawn(count: int, lengths: Lengths, tokenizer: Tokenizer, luck: np.random.Generator, *, as_text: bool) -> list[Sample]:
    """Random prompts. As text, a prompt may have another number of tokens than was drawn; the server's count is what is reported."""
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    usable = np.array(sorted(set(tokenizer.get_vocab(with_added_tokens=False).values()) - special))
    prefix = luck.choice(usable, lengths.prefix).tolist()
    inputs, outputs = (_lengths(one, lengths.range_ratio, count, luck) for one in (lengths.input, lengths.output))
    samples = []
    for length, output in zip(inputs, outputs, strict=True):
        ids = [*prefix, *luck.choice(usable, length).tolist()]
        samples.append(Sample(tokenizer.decode(ids) if as_text else ids, len(ids), output))
    return samples


def _lengths(middle: int, ratio: float, count: int, luck: np.random.Generator) -> list[int]:
    found: list[int] = luck.integers(max(1, int(middle * (1 - ratio))), int(middle * (1 + ratio)) + 1, count).tolist()
    return found


def from_sharegpt(path: Path, count: int, output: int | None, tokenizer: Tokenizer, luck: np.random.Generator) -> list[Sample]:
    """The first two turns of conversations: a prompt, and an answer whose length is asked for. Too short and too long ones are left out."""
    given = _parsed(path, path.read_text(encoding="utf-8"))
    if not isinstance(given, list):
        raise ConfigRejected(f"--dataset-path: {path} must be a JSON list of conversations")
    turns = [
        (found[0]["value"], found[1]["value"]) for one in given if len(found := one.get("conversations", one.get("conversation", []))) > 1
    ]
    luck.shuffle(turns)
    samples: list[Sample] = []
    for prompt, answer in turns:
        asked = len(tokenizer.encode(prompt).ids)
        wanted = len(tokenizer.encode(answer).ids) if output is None else output
        if asked >= _LEAST_TURN and wanted >= _LEAST_TURN and asked <= _MOST_PROMPT and asked + wanted <= _MOST_TOGETHER:
            samples.append(Sample(prompt, asked, wanted))
        if len(samples) == count:
            break
    return _enough(samples, count, path)


def from_lines(path: Path, count: int, output: int | None) -> list[Sample]:
    """Lines of JSON with a `prompt` (text or token ids) and perhaps `output_tokens`; in the order of the file, from the beginning again
    if it has too few."""
    samples = []
    for number, line in enumerate(_lines(path), 1):
        entry = _parsed(path, line, number)
        prompt = entry.get("prompt") if isinstance(entry, dict) else None
        if not isinstance(prompt, str | list):
            raise ConfigRejected(f"--dataset-path: {path}, line {number}: it must be an object with a prompt")
        length = 0 if isinstance(prompt, str) else len(prompt)
        samples.append(Sample(prompt, length, output or int(entry.get("output_tokens") or _DEFAULT_OUTPUT)))
    return _enough(samples, count, path)


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        yield from (line for line in lines if line.strip())


def _parsed(path: Path, text: str, line: int | None = None) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        where = "" if line is None else f", line {line}"
        raise ConfigRejected(f"--dataset-path: {path}{where} is not JSON: {error}") from error


def _enough(samples: Sequence[Sample], count: int, path: Path) -> list[Sample]:
    if not samples:
        raise ConfigRejected(f"--dataset-path: {path} has no request that can be used")
    return [samples[at % len(samples)] for at in range(count)]
