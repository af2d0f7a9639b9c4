"""Compile src/ into one shared library beside this file. Called by the wheel's build hook (hatch_build.py); never at run time.

The library has plain C functions and links nothing but the C library, so it does not care which torch or Python loads it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "_decoder.so"
SOURCES = FOLDER / "src"

# Written out instead of -march=native: the wheel runs on other machines than the one that built it. `native.missing` checks them all.
FEATURES = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "fma")
_FLAGS = [f"-m{feature.replace('_', '')}" for feature in FEATURES]
# gcc 12 takes the deliberately undefined sources inside its own AVX-512 intrinsics for mistakes.
_WARNINGS = ["-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]


def command(compiler: str, target: Path) -> list[str]:
    """How the library is compiled. No fast-math: NaN must stay NaN. Its C++ runtime is inside: an image that gets the wheel may have an
    older one than the machine that built it, or none."""
    return [
        compiler,
        "-std=c++20",
        "-O3",
        *_WARNINGS,
        *_FLAGS,
        "-fPIC",
        "-shared",
        "-pthread",
        "-static-libstdc++",
        "-static-libgcc",
        "-o",
        str(target),
        *map(str, sorted(SOURCES.glob("*.cpp"))),
    ]


def build() -> Path | None:
    """Compile if a source is newer; the library, or None where this machine has no x86-64 compiler (torch does all the work then)."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if platform.machine() not in {"x86_64", "AMD64"} or compiler is None:
        return None
    newest = max(path.stat().st_mtime for path in [Path(__file__), *SOURCES.iterdir()])
    if not LIBRARY.is_file() or LIBRARY.stat().st_mtime < newest:
        partial = LIBRARY.with_suffix(".partial")
        subprocess.run(command(compiler, partial), check=True)
        partial.replace(LIBRARY)
    return LIBRARY
