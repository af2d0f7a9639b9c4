"""A directory as peft saves it → an adapter of one model, or AdapterRejected with the reason: `load_adapter` for torch, `load_native`
for the CPU's native ops, `load_pooled` for the GPU's fused ones. Called by the runner.

Everything is judged from sizes and headers before a matrix is made.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import torch
from pagoda_kernels.gpu.lora_pool import MODULES, PARTS, pack_lora
from torch import Tensor

from pagoda_daemon.core.errors import AdapterRejected, ModelRejected
from pagoda_daemon.lora.config import AdapterConfig, parse_config
from pagoda_daemon.lora.content import WEIGHTS, Content, read_content
from pagoda_daemon.lora.modules import Module, modules_of, native_order, parts_of, refuse_unknown
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.files import DTYPES, Stored, header_of, read_into, staging_buffer
from pagoda_daemon.model.lowrank import Adapter, LowRank, Part, fused
from pagoda_daemon.model.packed_lowrank import NativeAdapter, PooledAdapter, native_adapter

_MOST_HEADER: Final = 2**24
_WIDEST: Final = 4  # bytes of a number

Pair = tuple[Tensor, Tensor]


class Bounds(NamedTuple):
    """Largest `rank`; `root`: the only directory below which files may lie, None for any."""

    rank: int
    root: Path | None = None


class Matrices(NamedTuple):
    """Both matrices of each module that an adapter changes, by the module's name, the scale in the second one."""

    digest: str
    rank: int
    pairs: Mapping[str, Pair]


def load_adapter(directory: Path, spec: ModelSpec, like: Tensor, bounds: Bounds) -> Adapter:
    """For torch; its matrices have the type and the place of `like`."""
    return fused_adapter(read_adapter(directory, spec, like, bounds), spec)


def load_native(directory: Path, spec: ModelSpec, bounds: Bounds) -> NativeAdapter:
    """For the CPU's native ops, in bf16."""
    return packed_adapter(read_adapter(directory, spec, torch.empty(0, dtype=torch.bfloat16), bounds), spec)


def load_pooled(directory: Path, spec: ModelSpec, like: Tensor, bounds: Bounds) -> PooledAdapter:
    """For the GPU's fused ops; its matrices have the type of `like` and wait on the host."""
    return pooled_adapter(read_adapter(directory, spec, torch.empty(0, dtype=like.dtype), bounds), spec, like)


def fused_adapter(found: Matrices, spec: ModelSpec) -> Adapter:
    """As `model.lowrank` computes with it."""
    layers: tuple[dict[Part, LowRank], ...] = tuple({} for _ in range(spec.layers))
    for (layer, part), members in parts_of(modules_of(spec).values()).items():
        if (one := fused([found.pairs.get(module.name) for module in members], [module.outputs for module in members])) is not None:
            layers[layer][part] = one
    return Adapter(found.digest, found.rank, layers)


def packed_adapter(found: Matrices, spec: ModelSpec) -> NativeAdapter:
    """As the native ops compute with it."""
    return native_adapter(found.digest, found.rank, [found.pairs.get(name) for name in native_order(spec)])


def pooled_adapter(found: Matrices, spec: ModelSpec, like: Tensor) -> PooledAdapter:
    """As the fused ops compute with it, on its way to the device of `like`."""
    layers: list[list[Pair | None]] = [[None] * MODULES for _ in range(spec.layers)]
    for (layer, part), members in parts_of(modules_of(spec).values()).items():
        begin, end = PARTS[part]
        layers[layer][begin:end] = [found.pairs.get(module.name) for module in members]
    return PooledAdapter(found.digest, found.rank, pack_lora(layers, like))


def read_adapter(directory: Path, spec: ModelSpec, like: Tensor, bounds: Bounds) -> Matrices:
    """Of the type and at the place of `like`."""
    modules = modules_of(spec)
    most = sum(bounds.rank * (module.inputs + module.outputs) for module in modules.values()) * _WIDEST + _MOST_HEADER
    content = read_content(directory, most, bounds.root)
    config = parse_config(content.config)
    if config.largest_rank > bounds.rank:
        raise AdapterRejected(f"rank {config.largest_rank} exceeds the largest one allowed, {bounds.rank} (adapters.maxRank)")
    try:
        return _matrices(content, config, modules, like)
    except ModelRejected as error:  # the safetensors reader's word for a file that is none
        raise AdapterRejected(str(error)) from error


def _matrices(content: Content, config: AdapterConfig, modules: Mapping[str, Module], like: Tensor) -> Matrices:
    file = io.BytesIO(content.weights)
    stored = header_of(Path(WEIGHTS), file, len(content.weights))
    wanted = {name: module for name, module in modules.items() if config.wants(name, module.layer)}
    refuse_unknown(stored.keys(), modules, wanted)
    read = _Reader(file, stored, config, like)
    pairs = {name: read.pair(name, module) for name, module in wanted.items()}
    return Matrices(content.digest, max(config.rank_of(name) for name in wanted), pairs)


class _Reader:
    """Both matrices of a module, checked."""

    def __init__(self, file: io.BytesIO, stored: Mapping[str, Stored], config: AdapterConfig, like: Tensor) -> None:
        self._file, self._stored, self._config, self._like = file, stored, config, like
        self._staging = staging_buffer()

    def pair(self, name: str, module: Module) -> Pair:
        """The scale is in the second one."""
        rank = self._config.rank_of(name)
        shrink = self._matrix(module.key("A"), (rank, module.inputs))
        expand = self._matrix(module.key("B"), (module.outputs, rank)) * self._config.scale_of(name)
        return tuple(one.to(self._like.device, self._like.dtype) for one in (shrink, expand))  # type: ignore[return-value]

    def _matrix(self, key: str, shape: tuple[int, int]) -> Tensor:
        stored = self._stored[key]
        if stored.shape != shape:
            raise AdapterRejected(
                f"{key} has shape {list(stored.shape)}; this model and adapter_config.json call for {list(shape)}: "
                "the adapter is for another base model, or the file for another configuration"
            )
        if stored.dtype not in DTYPES:
            raise AdapterRejected(f"{key} is stored as {stored.dtype}; it must be one of {', '.join(DTYPES)}")
        matrix = torch.empty(shape, dtype=torch.float32)
        read_into(matrix, stored, self._file, self._staging)
        if not bool(torch.isfinite(matrix).all()):
            raise AdapterRejected(f"{key} holds numbers that are not finite")
        return matrix
