"""Which files of a source are taken, and under which names. Pure.

Taken are top-level files that a replica reads as data: weights as safetensors, JSON, tokenizers, chat templates. Everything else
(pickled weights, code, folders) stays where it is. A name that tries to leave its folder is refused with the whole source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pagoda_fetch.core.errors import Refused

WEIGHTS: Final = ".safetensors"
_SUFFIXES: Final = (WEIGHTS, ".json", ".jinja", ".tiktoken")
_WORDS: Final = frozenset(("tokenizer.model", "merges.txt", "vocab.txt"))
_PLAIN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=@-]{0,199}")
# One of them says what the weights are.
CONFIGS: Final = frozenset(("config.json", "adapter_config.json"))
_MODEL_WEIGHTS: Final = re.compile(r"model.*\.safetensors")


def check(name: str) -> str:
    """The name, where it stays below its folder; Refused else."""
    parts = name.split("/")
    tricks = any(part in ("", ".", "..") for part in parts) or "\\" in name or not name.isprintable()
    if tricks or len(name) > 1024:
        raise Refused(f"the source has a file named {name[:200]!r}; names must not have '..', '\\' or a leading '/'")
    return name


def taken(name: str) -> bool:
    """Whether a checked name is a file for a replica."""
    return _PLAIN.fullmatch(name) is not None and (name.endswith(_SUFFIXES) or name in _WORDS)


def chosen(names: Sequence[str]) -> frozenset[str]:
    """Which of a source's names are fetched; Refused where they make no model.

    Where weights stand twice (`consolidated.safetensors` beside `model-*.safetensors`), only those are taken that a replica reads.
    """
    found = [name for name in map(check, names) if taken(name)]
    if len(set(found)) != len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise Refused(f"the source holds two files called {twice!r}")
    weights = [name for name in found if name.endswith(WEIGHTS)]
    ours = [name for name in weights if _MODEL_WEIGHTS.fullmatch(name)] or weights
    if not ours or not CONFIGS & set(found):
        seen = ", ".join(sorted(names)[:12]) or "nothing"
        raise Refused(
            f"no model there: needs config.json (or adapter_config.json) and *.safetensors, pickled weights are not taken; found {seen}"
        )
    return frozenset(name for name in found if name not in weights or name in ours)
