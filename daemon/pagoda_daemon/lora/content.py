"""The two files of an adapter, read once, so that the digest is of the bytes that are used. Nothing is unpickled. Called by `lora.load`.

Knows no torch.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final, NamedTuple

from pagoda_daemon.core.errors import AdapterMissing, AdapterRejected

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_MOST_CONFIG: Final = 2**20
_PICKLED: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class Content(NamedTuple):
    """The bytes of both files, and the name of them together."""

    config: bytes
    weights: bytes
    digest: str


def read_content(directory: Path, most: int, root: Path | None = None) -> Content:
    """AdapterMissing where there is none, AdapterRejected where its files are not to be read."""
    config = _read(directory, CONFIG, _MOST_CONFIG, root)
    weights = _read(directory, WEIGHTS, most, root)
    found = hashlib.sha256(f"{len(config)} ".encode())
    found.update(config)
    found.update(weights)
    return Content(config, weights, f"sha256:{found.hexdigest()}")


def _read(directory: Path, name: str, most: int, root: Path | None) -> bytes:
    try:
        path = (directory / name).resolve()
        if root is not None and not path.is_relative_to(root.resolve()):
            raise AdapterRejected(f"{name} must lie below the directory of adapters")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(most + 1) if size <= most else b""
    except (FileNotFoundError, NotADirectoryError) as error:
        raise AdapterMissing(f"No adapter found: {_absent(directory, name)}") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a NUL in the name
        raise AdapterRejected(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if size > most or len(data) > most:
        raise AdapterRejected(f"{name} must have at most {most} bytes for this model and adapters.maxRank, got {size}")
    return data


def _absent(directory: Path, name: str) -> str:
    if not directory.is_dir():
        return "the directory does not exist"
    pickled = sorted(path.name for path in directory.iterdir() if path.suffix in _PICKLED)
    found = f"; {pickled[0]} is not loaded, because pickled files can run code" if pickled and name == WEIGHTS else ""
    return f"the directory has no {name}{found}"
