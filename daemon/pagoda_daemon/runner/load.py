"""load_forward: a model directory → a Forward with its pool, in the way that machine, model and configuration allow. Called by the torch
worker, on the thread that will compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from pagoda_contracts.launch import AdaptersConfig, EngineConfig
from pagoda_kernels.cpu.native import BLOCK, NativeDecoder

from pagoda_daemon.core.batch import WorkerLimits
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.lora.load import Bounds, load_adapter, load_native
from pagoda_daemon.lora.modules import adapter_bytes, native_adapter_bytes
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import ModelSpec, read_spec
from pagoda_daemon.model.decoder import Decoder
from pagoda_daemon.model.fingerprint import fingerprint
from pagoda_daemon.model.loader import Reading, load_tensors
from pagoda_daemon.model.packed import KINDS, Packer, not_native, packed_weight_bytes
from pagoda_daemon.model.weights import Weights, allocate, destinations, weight_bytes
from pagoda_daemon.runner.adapters import AdapterStore, Readable
from pagoda_daemon.runner.forward import Forward, NativeForward, TorchForward
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.kv_size import KvShape, kv_shape, needs
from pagoda_daemon.runner.place import computed_by, memory_at, place_of, uuid_of

DTYPES: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}

INT8_WIDE_ROWS: Final = 1
"""int8 weights meet bf16 activations up to this many rows of a step, 8-bit ones above. docs/benchmarks.md: 8-bit ones are faster from one
row on, but further from bf16."""

_NATIVE_LOGIT: Final = 4  # bytes: the native ops answer in fp32

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A forward pass, what it can hold, why it is torch where it is, and its LoRA adapters where it takes any."""

    forward: Forward
    limits: WorkerLimits
    weight_bytes: int
    by: str
    adapters: AdapterStore | None = None


def load_forward(directory: Path, engine: EngineConfig, host: Host, progress: Progress, lora: AdaptersConfig | None = None) -> Loaded:
    """Read the model and size the pool; PermanentError where no restart would help. The pool has one block more than the limits say."""
    threads = engine.threads or host.cores()
    torch.set_num_threads(threads)
    spec, place = read_spec(directory), place_of(engine.device)
    engine = engine.at(cuda=place.type == "cuda")
    why = _not_native(spec, engine, place)
    if lora is not None and engine.deterministic and why is not None:
        raise ConfigRejected(f"engine.deterministic and adapters need the CPU's native ops to be used together: {why}")
    if engine.quantization is not None and (why is not None or engine.quantization not in KINDS):
        raise ConfigRejected(_unquantised(engine, why))
    if engine.kv_dtype not in (None, engine.dtype):
        raise ConfigRejected(
            f"engine.kvDtype is {engine.kv_dtype}; where a GPU's fused ops do not compute it must be dtype, {engine.dtype}"
        )
    kind, dtype = KINDS[engine.quantization], DTYPES[engine.dtype]
    size = weight_bytes(spec, dtype) if why is not None else packed_weight_bytes(spec, kind)
    size += 0 if lora is None else lora.max_loaded * _adapter_bytes(spec, lora.max_rank, dtype, why)
    logit = dtype.itemsize if why is not None else _NATIVE_LOGIT
    shape = kv_shape(engine, needs(spec, engine, size, dtype.itemsize, logit), memory_at(place, host))
    spec = spec.within(shape.max_model_len)
    name = fingerprint(directory, engine.dtype, engine.quantization or "")
    by = computed_by(place, threads, native=why is None), uuid_of(place)
    limits = WorkerLimits(shape.blocks, engine.block_size, spec.vocab_size, shape.max_model_len, spec.sliding_window, name, *by)
    with place:
        weights = allocate(spec, dtype)
    places = destinations(spec, weights)
    if why is not None:
        load_tensors(directory, places, progress, Reading(stored=spec.stored))
        forward = _torch(spec, weights, shape, engine, place)
        return Loaded(forward, limits, size, f"torch: {why}", None if lora is None else _store(lora, spec, forward))
    packer = Packer(spec, weights, kind)
    load_tensors(directory, places, progress, Reading(packer.filled, spec.stored))
    native = _native(packer, shape, engine, threads)
    return Loaded(native, limits, size, "native ops", None if lora is None else _store(lora, spec, native))


def _torch(spec: ModelSpec, weights: Weights, shape: KvShape, engine: EngineConfig, place: torch.device) -> TorchForward:
    with place:
        # A deterministic one pads with a block of its own: the spare one may be the deep check's in the same pass.
        kv = KvCache(spec, shape.blocks + (2 if engine.deterministic else 1), engine.block_size, DTYPES[engine.dtype])
        return TorchForward(Decoder(spec, weights, shape.max_model_len), kv, shape.blocks + 1 if engine.deterministic else None)


def _adapter_bytes(spec: ModelSpec, rank: int, dtype: torch.dtype, why: str | None) -> int:
    return native_adapter_bytes(spec, rank) if why is None else adapter_bytes(spec, rank, dtype.itemsize)


def _store(lora: AdaptersConfig, spec: ModelSpec, forward: TorchForward | NativeForward) -> AdapterStore:
    def read(directory: Path, root: Path | None) -> Readable:
        bounds = Bounds(lora.max_rank, root)
        if isinstance(forward, NativeForward):
            return load_native(directory, spec, bounds)
        return load_adapter(directory, spec, forward.model.weights.norm, bounds)

    return AdapterStore.of(lora, read, forward.adapters)


def _native(packer: Packer, shape: KvShape, engine: EngineConfig, threads: int) -> NativeForward:
    wide_rows = 0 if engine.deterministic else INT8_WIDE_ROWS
    return NativeForward(NativeDecoder(packer.decoder(shape.max_model_len, wide_rows), shape.blocks + 1, threads))


def _not_native(spec: ModelSpec, engine: EngineConfig, place: torch.device) -> str | None:
    if place.type != "cpu":
        return f"device {place.type}"
    if engine.dtype != "bfloat16":
        return f"dtype {engine.dtype}"
    if engine.block_size != BLOCK:
        return f"blockSize {engine.block_size}"
    return not_native(spec)


def _unquantised(engine: EngineConfig, why: str | None) -> str:
    if engine.quantization not in KINDS:
        return f"quantization {engine.quantization} is not built for CPU; available there is {', '.join(name for name in KINDS if name)}"
    return f"quantization {engine.quantization} needs the CPU's native ops: {why}"
