"""What a compiled kernel's binary says about its speed, and what it may not say. Pure: text in, figures and words out.

NVIDIA's figures come from the PTX and from what the assembler says about registers and stack (a disassembly would cost half a second
of CPU for each binary and says the same), AMD's from the compiler's assembly.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

from pagoda_kernels.exports import Bands

SHARED_LIMIT: Final = {"sm_80": 166912, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
"""Bytes of shared memory that one block may have. The compiler does not look at it."""

_PTX: Final = re.compile(r"^\s*(?:\{\s*)?(?:@!?%\w+\s+)?([a-z]\w*\.[\w.:]+|ret|bra)\b([^;]*);", re.MULTILINE)
_MMA: Final = (
    ("mma.sync", re.compile(r"e[45]m[23]"), "QMMA"),
    ("mma.sync", re.compile(r"\.[su]8\."), "IMMA"),
    ("mma.sync", re.compile(""), "HMMA"),
    ("wgmma.mma_async", re.compile(r"e[45]m[23]"), "QGMMA"),
    ("wgmma.mma_async", re.compile(r"\.[su]8"), "IGMMA"),
    ("wgmma.mma_async", re.compile(""), "HGMMA"),
    ("tcgen05.mma", re.compile(r"kind::f8|kind::mxf8"), "UTCQMMA"),
    ("tcgen05.mma", re.compile(r"kind::i8"), "UTCIMMA"),
    ("tcgen05.mma", re.compile(r"kind::mxf4"), "UTCOMMA"),
    ("tcgen05.mma", re.compile(r"kind::"), "UTCHMMA"),
)
"""The machine's name of what multiplies matrices: what the instruction's own name starts with, what else is in it, and the class."""
_VECTOR: Final = re.compile(r"(?:\.v(\d))?\.[a-z](\d+)$")
_COPIED: Final = re.compile(r",\s*(0x[0-9a-f]+|\d+)\s*(?:,|$)")
_FLOAT: Final = re.compile(r"\.(?:[bt]?f\d|e[45]m)")
_WIDE: Final = 16  # bytes
_AMD_OPCODE: Final = re.compile(r"^\s+((?:v|s|ds|global|buffer|flat)_\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one kernel on one arch.

    shared: bytes. registers: per thread. spills: bytes of stack; on AMD, registers. mma: instructions that multiply matrices, by class.
    depth: groups of cp.async that stay in flight where the kernel waits for the next; 0: none, a tile is loaded under the one before at
    most; None: no cp.async. tma: loads by descriptor. loads: from global memory, of these `wide` of 128 bits or more. converts: to or
    from a floating type.
    """

    shared: int
    warps: int
    registers: int
    spills: int
    mma: dict[str, int]
    depth: int | None
    tma: int
    loads: int
    wide: int
    converts: int
    instructions: int


def nvidia_facts(ptx: str, usage: str, *, shared: int, warps: int) -> Facts:
    """From the PTX, and the line of cuobjdump about registers and stack: only what is spilled lies on a stack."""
    codes = [(name, operands) for name, operands in _PTX.findall(ptx)]
    widths = [width for name, operands in codes if (width := _width(name, operands))]
    used = {what: int(count) for what, count in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    waits = [int(operands) for name, operands in codes if name == "cp.async.wait_group"]
    return Facts(
        shared=shared,
        warps=warps,
        registers=used["REG"],
        spills=used["STACK"] + used["LOCAL"],
        mma=dict(sorted(Counter(filter(None, (_mma(name) for name, _ in codes))).items())),
        depth=max(waits, default=None),
        tma=sum(name.startswith("cp.async.bulk.tensor") and ".global.mbarrier" in name for name, _ in codes),
        loads=len(widths),
        wide=sum(width >= _WIDE for width in widths),
        converts=sum(name.startswith("cvt.") and _FLOAT.search(name) is not None for name, _ in codes),
        instructions=len(codes),
    )


def _mma(name: str) -> str | None:
    return next((kind for prefix, rest, kind in _MMA if name.startswith(prefix) and rest.search(name)), None)


def _width(name: str, operands: str) -> int:
    """Bytes that a thread loads from global memory; 0 for another instruction."""
    if name.startswith("ld.global") and (found := _VECTOR.search(name)):
        return int(found.group(1) or 1) * int(found.group(2)) // 8
    if re.match(r"cp\.async\.c[ag]\.", name) and (copied := _COPIED.search(operands)):
        return int(copied.group(1), 0)
    return 0


def amd_facts(assembly: str, *, shared: int, warps: int) -> Facts:
    """From the compiler's `assembly`, whose last part lists registers and spills."""
    names = Counter(_AMD_OPCODE.findall(assembly))
    loads = {name: count for name, count in names.items() if re.match(r"(global|buffer|flat)_load_", name)}
    products = sum(count for name, count in names.items() if name.startswith("v_mfma"))
    return Facts(
        shared=shared,
        warps=warps,
        registers=_listed(assembly, "vgpr_count"),
        spills=_listed(assembly, "vgpr_spill_count") + _listed(assembly, "sgpr_spill_count"),
        mma={"MFMA": products} if products else {},
        depth=None,
        tma=0,
        loads=sum(loads.values()),
        wide=sum(count for name, count in loads.items() if "dwordx4" in name or "b128" in name),
        converts=sum(count for name, count in names.items() if name.startswith("v_cvt")),
        instructions=sum(names.values()),
    )


def _listed(assembly: str, name: str) -> int:
    found = re.search(rf"\.{name}:\s+(\d+)", assembly)
    if found is None:
        raise ValueError(f"the assembly lists no {name}")
    return int(found.group(1))


def refusals(arch: str, facts: Facts, bands: Bands) -> list[str]:
    """Why a kernel with these `facts` must not ship for `arch`; empty: it may."""
    out = []
    if facts.shared > SHARED_LIMIT[arch]:
        out.append(f"{facts.shared} bytes of shared memory, the device has {SHARED_LIMIT[arch]}")
    if facts.spills:
        out.append(f"registers are spilled: {facts.spills} bytes or registers")
    if bands.registers is not None and facts.registers > bands.registers:
        out.append(f"{facts.registers} registers, at most {bands.registers} are allowed")
    if (expected := bands.mma.get(arch)) is not None and set(facts.mma) != set(expected.split()):
        out.append(f"matrices are multiplied by {' '.join(facts.mma) or 'nothing'}, {expected} is expected")
    return out + _slow_loads(arch, facts, bands)


def _slow_loads(arch: str, facts: Facts, bands: Bands) -> list[str]:
    if not arch.startswith("sm_"):
        return []
    out = []
    depth = -1 if facts.depth is None else facts.depth
    if bands.depth is not None and not facts.tma and depth < bands.depth:
        what = "nothing is loaded ahead" if depth < 0 else f"{depth} loads stay in flight"
        out.append(f"{what}, a depth of {bands.depth} is expected: the loop is not pipelined")
    if bands.wide_loads is not None and facts.wide < bands.wide_loads * facts.loads:
        out.append(f"{facts.wide} of {facts.loads} loads are of 128 bits, a share of {bands.wide_loads} is expected")
    return out
