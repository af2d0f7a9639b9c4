"""Compile src/ into a shared library for each kind of processor, beside this file. Called by the wheel's build hook (hatch_build.py); never
at run time.

A library has plain C functions and links nothing but the C library, so it does not care which torch or Python loads it.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
SOURCES: Final = FOLDER / "src"


@dataclass(frozen=True, slots=True)
class Variant:
    """The ops for processors with `features`, as /proc/cpuinfo names them. `instructions`: what people call them."""

    name: str
    instructions: str
    features: tuple[str, ...]

    @property
    def library(self) -> Path:
        return FOLDER / f"_decoder_{self.name}.so"


# Written out instead of -march=native: the wheel runs on other machines than the one that built it. `choice.chosen` looks for them.
VARIANTS: Final = (
    Variant("avx512", "AVX-512 BF16", ("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "fma")),
    Variant("avx2", "AVX2", ("avx2", "fma")),
)
"""The first that a processor has is used."""

# gcc 12 takes the deliberately undefined sources inside its own AVX-512 intrinsics for mistakes.
_WARNINGS: Final = ["-Wall", "-Wextra", "-Wno-maybe-uninitialized", "-Wno-uninitialized"]


def command(compiler: str, variant: Variant, target: Path) -> list[str]:
    """How a library is compiled. No fast-math: NaN must stay NaN. Its C++ runtime is inside: an image that gets the wheel may have an
    older one than the machine that built it, or none."""
    return [
        compiler,
        "-std=c++20",
        "-O3",
        *_WARNINGS,
        *(f"-m{feature.replace('_', '')}" for feature in variant.features),
        "-fPIC",
        "-shared",
        "-pthread",
        "-static-libstdc++",
        "-static-libgcc",
        "-o",
        str(target),
        *map(str, sorted(SOURCES.glob("*.cpp"))),
    ]


def build() -> list[Path]:
    """Compile what is older than a source; the libraries, none where this machine has no x86-64 compiler (torch does all the work then)."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if platform.machine() not in {"x86_64", "AMD64"} or compiler is None:
        return []
    newest = max(path.stat().st_mtime for path in [Path(__file__), *SOURCES.iterdir()])
    old = [variant for variant in VARIANTS if not variant.library.is_file() or variant.library.stat().st_mtime < newest]
    started = [(variant, subprocess.Popen(command(compiler, variant, _partial(variant)))) for variant in old]
    codes = [process.wait() for _, process in started]  # of both: none may write on behind an error
    for (variant, process), code in zip(started, codes, strict=True):
        if code != 0:
            raise subprocess.CalledProcessError(code, process.args)
        _partial(variant).replace(variant.library)
    return [variant.library for variant in VARIANTS]


def _partial(variant: Variant) -> Path:
    return variant.library.with_suffix(".partial")
