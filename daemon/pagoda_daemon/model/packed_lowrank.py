"""An adapter for the CPU's native ops, and for the GPU's fused ones. Packed by the runner when it reads one, on the thread that reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagoda_kernels.cpu.low_rank import PackedAdapter, Pair, low_rank_bytes, pack_low_rank
from pagoda_kernels.gpu.lora_pool import PackedLora, lora_elements


@dataclass(frozen=True, slots=True, eq=False)
class NativeAdapter:
    """`digest` names its content, `rank` is the largest of any module."""

    digest: str
    rank: int
    packed: PackedAdapter


@dataclass(frozen=True, slots=True, eq=False)
class PooledAdapter:
    """As `NativeAdapter`; on the host until it gets its slot in the device's pool."""

    digest: str
    rank: int
    packed: PackedLora


def native_adapter(digest: str, rank: int, pairs: Sequence[Pair | None]) -> NativeAdapter:
    """`pairs` of every module of every layer in the order of `lora.modules`, None where one is not changed."""
    return NativeAdapter(digest, rank, pack_low_rank(pairs))


def native_bytes(rank: int, inputs: int, outputs: int) -> int:
    """Of one module."""
    return low_rank_bytes(rank, inputs, outputs)


def pooled_elements(rank: int, inputs: int, outputs: int) -> int:
    """Numbers of one module in the device's pool."""
    return lora_elements(rank, inputs, outputs)
