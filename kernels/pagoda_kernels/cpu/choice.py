"""Which library of the native ops this processor can run, and why none. Asked by the daemon's CPU runner before it packs weights."""

from __future__ import annotations

import ctypes
from pathlib import Path

from pagoda_kernels.cpu import abi
from pagoda_kernels.cpu.build import VARIANTS, Variant


def chosen(cpuinfo: Path = Path("/proc/cpuinfo")) -> Variant | None:
    """What of the libraries that are there this processor can run, the best first; None: none of them."""
    return next((variant for variant in VARIANTS if variant.library.is_file() and not lacking(variant, cpuinfo)), None)


def missing(cpuinfo: Path = Path("/proc/cpuinfo"), library: Path | None = None) -> str | None:
    """Why the native ops cannot run here; None when they can. `library`: in the place of what is chosen."""
    if lacks := lacking(VARIANTS[-1], cpuinfo):
        return f"the CPU lacks {', '.join(lacks)}"
    variant = chosen(cpuinfo)
    path = library or (VARIANTS[-1] if variant is None else variant).library
    if not path.is_file():
        return "it was installed without the native library (no x86-64 C++ compiler when it was built)"
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the native library cannot be loaded: {error}"
    return None if abi.sizes(loaded) == abi.SIZES else "the native library was built from other sources than these"


def lacking(variant: Variant, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instructions of a library that the processor does not have, as far as the system tells."""
    told = cpuinfo.read_text() if cpuinfo.is_file() else ""
    lines = (line.split(":", 1)[1].split() for line in told.splitlines() if line.startswith("flags"))
    return sorted(set(variant.features) - set(next(lines, ())))


def library() -> ctypes.CDLL:
    """The one that is chosen; ValueError where none can run here."""
    variant = chosen()
    if variant is None:
        raise ValueError(f"the native ops cannot run here: {missing()}")
    return abi.library(variant.library)
