"""The parts of a replica's DaemonConfig that say how it computes and when it counts as broken. Pure; called by `pod`."""

from __future__ import annotations

import math

from pagoda_contracts.launch import EngineConfig, HealthConfig
from pagoda_contracts.resources.placement import Accelerator
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_contracts.units import parse_quantity
from pagoda_placement.options import ranks


def health(spec: InferenceServiceSpec) -> HealthConfig | None:
    """The times that the service sets; None if it sets none."""
    load = {"load_timeout": spec.engine.load_timeout} if spec.engine.load_timeout else {}
    return HealthConfig(**(spec.health.model_dump() if spec.health else {}), **load) if spec.health or load else None


def engine(spec: InferenceServiceSpec, accelerator: Accelerator) -> EngineConfig:
    """What the service sets, on the devices of this entry."""
    engine, size = spec.engine, spec.engine.kv_cache.size
    # A request without a limit leaves the cgroup open: without this, a replica of 2 cores starts a thread per core of the node.
    cores = max(1, math.ceil(parse_quantity(accelerator.cpu.cores))) if accelerator.cpu else None
    return EngineConfig(
        max_model_len=engine.max_model_len,
        max_concurrency=engine.max_concurrency,
        token_budget=engine.tokens(cuda=accelerator.cpu is None),
        dtype="bfloat16" if engine.dtype == "auto" else engine.dtype,
        device=None if accelerator.cpu else "cuda",
        tensor_parallel=count if (count := ranks(accelerator)) > 1 else None,
        block_size=engine.kv_cache.block_size,
        kv_bytes=int(parse_quantity(size)) if size is not None else None,
        threads=engine.threads or cores,
        quantization=None if engine.quantization == "none" else engine.quantization,
        deterministic=engine.deterministic or None,
        prefix_caching=None if engine.kv_cache.prefix_caching else False,
        tool_parser=engine.tool_parser,
        kv_dtype=None if (kept := engine.kv_cache.dtype) in ("auto", "bfloat16") else kept,
    )
