"""fingerprint: a name for the weights in a directory, from their files' sizes, headers and samples of their bytes. Called by `runner.load`.

Block names must not be shared by models that compute other keys and values. A digest of every byte would read gigabytes for that; two
models of one shape differ nearly everywhere, so a few pages of each file tell them apart. It does not protect against crafted files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from pagoda_daemon.core.errors import ModelRejected

_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096
_HEAD_BYTES: Final = 64 * 1024


def fingerprint(directory: Path, *numerics: str) -> str:
    """16 bytes in hex. `numerics`: what else changes keys and values, such as types."""
    found = hashlib.blake2b(repr(numerics).encode(), digest_size=16)
    try:
        for file in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
            size = file.stat().st_size
            found.update(f"{file.name} {size} ".encode())
            with file.open("rb") as handle:
                found.update(handle.read(_HEAD_BYTES))
                for number in range(1, _SAMPLES + 1):
                    handle.seek(max(0, size - _SAMPLE_BYTES) * number // _SAMPLES)
                    found.update(handle.read(_SAMPLE_BYTES))
    except OSError as error:
        raise ModelRejected(f"the model's files cannot be read: {error.strerror}") from error
    return found.hexdigest()
