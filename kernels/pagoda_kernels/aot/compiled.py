"""Compiles a kernel for a GPU that is not there, and takes its binary apart. Needs a tool that Triton's wheel carries, and no driver."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import PTXASError

from pagoda_kernels.aot import facts
from pagoda_kernels.aot.facts import Facts, amd_facts, nvidia_facts
from pagoda_kernels.exports import Export


class NotCompiled(Exception):
    """The compiler refuses a kernel: its own words."""


def facts_of(export: Export, arch: str) -> Facts:
    """Of the binary of `export` for `arch`. NotCompiled where there is none."""
    try:
        binary = triton.compile(_source(export), target=_target(arch), options={"enable_fp_fusion": True, **export.options})
    except (triton.CompilationError, PTXASError, RuntimeError) as error:
        raise NotCompiled(str(error).strip()) from error
    shared, warps = binary.metadata.shared, binary.metadata.num_warps
    if "cubin" not in binary.asm:
        return amd_facts(binary.asm["amdgcn"], shared=shared, warps=warps)
    return nvidia_facts(binary.asm["ptx"], _usage(binary.asm["cubin"]), shared=shared, warps=warps)


def identity(export: Export) -> str:
    """All that decides about its binaries and how they are judged: the kernel's source with all that it calls, types, constants, options,
    bands, the version of Triton, and the code that reads the binaries."""
    kernel = export.jit.cache_key
    launch = (
        sorted(export.signature.items()),
        sorted(export.constants.items()),
        sorted(export.options.items()),
        export.aligned,
        export.archs,
    )
    return repr((triton.__version__, kernel, launch, export.bands, Path(facts.__file__).read_text(encoding="utf-8")))


def _target(arch: str) -> Any:
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32) if arch.startswith("sm_") else GPUTarget("hip", arch, 64)


def _source(export: Export) -> Any:
    """What a launch gives the compiler: types, constants, and which arguments are multiples of 16, without which no load is wide."""
    names = list(export.jit.arg_names)
    declared = {**export.signature, **dict.fromkeys(export.constants, "constexpr")}
    if set(names) != set(declared):
        raise ValueError(f"{export.name}: the kernel's parameters are {names}, its export declares {sorted(declared)}")
    aligned = [name for name in names if declared[name].startswith("*") or name in export.aligned]
    return ASTSource(
        fn=export.jit,
        signature={name: declared[name] for name in names},
        constexprs={(names.index(name),): value for name, value in export.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )


def _usage(cubin: bytes) -> str:
    """What cuobjdump says about registers and stack, on either stream."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = (knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
