"""load_worker: a model directory → a warm GpuWorker. Called by `engine.build` where there is a CUDA device that the fused ops serve.

Startup: weights take the first part of the progress, graphs the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import structlog
import torch
from pagoda_contracts.launch import AdaptersConfig, DaemonConfig, EngineConfig
from pagoda_kernels.gpu.launch import why_not
from pagoda_kernels.gpu.paged_attention_decode import decode_config
from pagoda_kernels.gpu.prefill_config import arch_of, choose_config, quantised_config, query_tile

from pagoda_daemon.core.batch import SamplingRows, StepPlan, WorkerLimits
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.core.sampling import Sampling, draw_of
from pagoda_daemon.gpu.adapters import AdapterPool, pool_bytes
from pagoda_daemon.gpu.forward import GpuForward
from pagoda_daemon.gpu.inputs import Shape, buckets
from pagoda_daemon.gpu.weights import DTYPE, bytes_of, form_of, not_in_format, read_weights
from pagoda_daemon.gpu.worker import GpuWorker
from pagoda_daemon.lora.load import Bounds, load_pooled
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import ModelSpec, read_spec
from pagoda_daemon.model.fingerprint import fingerprint
from pagoda_daemon.model.fused import FusedDecoder, not_fused
from pagoda_daemon.model.quantised import FORMATS, quantised
from pagoda_daemon.model.weights import Weights, allocate, destinations, linears
from pagoda_daemon.runner.adapters import AdapterStore, Readable
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.kv_size import STEP_FLOOR, KvShape, kv_shape, needs, sampling_bytes
from pagoda_daemon.runner.place import computed_by, memory_at, place_of, uuid_of
from pagoda_daemon.runner.probe import one_token

_READING: Final = 0.8
"""Share of the progress that is the weights'."""

_KEPT: Final = {"float8": torch.float8_e4m3fn, "int8": torch.int8}
"""`engine.kvDtype` → what keys and values are kept in, where not in the model's dtype."""
_LEAST_CAPABILITY: Final = (8, 0)
_NARROW: Final = 64
_GRAPH_BYTES: Final = 16 * 2**20
"""What a captured graph holds beside its tensors: launches and their arguments."""

_log = structlog.get_logger(__name__)


def not_for_fused_ops(config: DaemonConfig) -> str | None:
    """Why torch computes eagerly instead; None where the fused ops do."""
    engine = config.engine
    if engine.dtype != "bfloat16":
        return f"dtype {engine.dtype}"
    if engine.deterministic:
        return "deterministic"
    spec, place = read_spec(Path(config.model.path)), place_of(engine.device)
    return not_fused(spec) or not_in_format(spec, engine, place) or _not_kept(engine, place) or _not_compiled(spec, engine, place)


def _not_compiled(spec: ModelSpec, engine: EngineConfig, place: torch.device) -> str | None:
    """Why the kernels do not run here for heads like these: no room for what is compiled, too little shared memory, a device that Triton
    does not know. A model of one narrow layer is tried."""
    if place.type == "cuda" and torch.cuda.get_device_capability(place) < _LEAST_CAPABILITY:
        return f"{torch.cuda.get_device_name(place)} has no instructions for bf16"
    window = min((window for window in spec.windows if window is not None), default=None)
    narrow = replace(spec, vocab_size=_NARROW, hidden=_NARROW, intermediate=_NARROW, tied=True)
    experts = None if spec.experts is None else replace(spec.experts, intermediate=_NARROW)
    trial = replace(narrow, layers=1, windows=(window,), sparse=(any(spec.sparse),), experts=experts)
    with place:
        weights = allocate(trial, DTYPE)
    for part in destinations(trial, weights).values():
        part.fill_(0)
    if (form := form_of(spec, engine, place)) is not None:
        weights = quantised(weights, FORMATS[form])
    limits = WorkerLimits(1, engine.block_size, _NARROW, engine.block_size)
    try:
        warm(warm_worker(trial, weights, engine, limits, lambda _share: None, graphs=False))
    except Exception as error:  # noqa: BLE001  whatever it is, torch computes without Triton
        return f"Triton kernels do not run here: {type(error).__name__}: {error}"
    torch.cuda.empty_cache()  # what the trial had would count as taken when the pool is sized
    return None


def load_worker(config: DaemonConfig, progress: Callable[[float], None]) -> GpuWorker:
    """Read the model, size the pool, capture the graphs; PermanentError where no restart would help."""
    directory, place, host = Path(config.model.path), place_of(config.engine.device), Host()
    spec, engine = read_spec(directory), config.engine.at(cuda=place.type == "cuda")
    threads = engine.threads or host.cores()
    torch.set_num_threads(threads)
    form = form_of(spec, engine, place)
    size, memory = bytes_of(directory, spec, form) + _adapters_bytes(config, spec), memory_at(place, host)
    asked = needs(spec, engine, size, DTYPE.itemsize, gathers=False)
    most = kv_shape(engine, replace(asked, step_bytes=0), memory).max_model_len  # refuses at once what can never fit
    weights = read_weights(directory, spec, place, form, lambda share: progress(_READING * share))
    step = _measured(spec.within(most), weights, engine, most, lambda: kv_shape(engine, asked, memory))
    shape = kv_shape(engine, replace(asked, step_bytes=step), memory)
    spec = spec.within(shape.max_model_len)
    name = fingerprint(directory, engine.dtype, form or "", *_numerics(engine))
    by = computed_by(place, threads, native=True), uuid_of(place)
    limits = WorkerLimits(shape.blocks, engine.block_size, spec.vocab_size, shape.max_model_len, spec.sliding_window, name, *by)
    note = lambda share: progress(_READING + (1 - _READING) * share)  # noqa: E731
    worker = warm_worker(spec, weights, engine, limits, note, graphs=config.adapters is None)
    if config.adapters is not None:
        take_adapters(worker, config.adapters, note)
    worker.watch_compiler()
    if (why := why_not()) is not None:
        _log.warning("Each launch goes through Triton's own dispatch, which is slow.", reason=why)
    _log.info("loaded", by="fused ops", weight_bytes=size, step_bytes=step, blocks=shape.blocks, max_model_len=shape.max_model_len)
    return worker


def _not_kept(engine: EngineConfig, place: torch.device) -> str | None:
    """Why keys and values cannot be kept as asked on this device."""
    if engine.kv_dtype != "float8" or place.type != "cuda" or torch.cuda.get_device_capability(place) >= FORMATS["fp8"].least:
        return None
    return f"kvDtype float8 needs compute capability 8.9 or newer, {torch.cuda.get_device_name(place)} has less; use int8"


def _numerics(engine: EngineConfig) -> tuple[str, ...]:
    """What changes keys and values beside the dtype."""
    return () if engine.kv_dtype not in _KEPT else (f"kv {engine.kv_dtype}",)


def _kept(engine: EngineConfig, dtype: torch.dtype) -> torch.dtype:
    return _KEPT.get(engine.kv_dtype or "", dtype)


def _adapters_bytes(config: DaemonConfig, spec: ModelSpec) -> int:
    """Their pool, and a second set of graphs."""
    lora, engine = config.adapters, config.engine.at(cuda=True)
    if lora is None:
        return 0
    tokens = max(engine.token_budget, engine.max_concurrency)
    return pool_bytes(spec, lora.max_loaded, lora.max_rank, tokens, DTYPE.itemsize) + len(buckets(engine.max_concurrency)) * _GRAPH_BYTES


def take_adapters(worker: GpuWorker, lora: AdaptersConfig, note: Callable[[float], None]) -> AdapterStore:
    """A worker without graphs takes LoRA adapters from now on, and has graphs for steps with and without."""
    forward = worker.forward
    spec, like = forward.decoder.spec, forward.decoder.weights.norm
    pool = forward.adapters = AdapterPool(spec, lora.max_loaded, lora.max_rank, like)

    def read(directory: Path, root: Path | None) -> Readable:
        return load_pooled(directory, spec, like, Bounds(lora.max_rank, root))

    worker.adapters = store = AdapterStore.of(lora, read, pool)
    pool.warm()
    _capture(worker, note)
    return store


def warm_worker(
    spec: ModelSpec, weights: Weights, engine: EngineConfig, limits: WorkerLimits, note: Callable[[float], None], *, graphs: bool = True
) -> GpuWorker:
    """From weights on the device. `limits` say how large the pool is; it gets one block more than they say. `graphs` False: every step
    launches its kernels one by one."""
    place = weights.norm.device
    with place:
        kv = KvCache(spec, limits.blocks_total + 1, limits.block_size, _kept(engine, weights.norm.dtype))
        decoder = FusedDecoder(spec, weights, limits.max_model_len)
    shape = _shape(spec, kv, weights.norm.dtype, engine.max_concurrency)
    forward = GpuForward(decoder, kv, shape, engine.max_concurrency)
    worker = GpuWorker(forward, limits)
    worker.probe()
    if place.type == "cuda":
        compile_all(worker, engine.token_budget)
    if graphs:
        _capture(worker, note)
    return worker


def _capture(worker: GpuWorker, note: Callable[[float], None]) -> None:
    """Where there is a device for it."""
    forward = worker.forward
    if forward.kv.data.device.type != "cuda":
        return
    try:
        with torch.inference_mode():
            forward.capture(worker.limits.max_model_len, note)
    except torch.OutOfMemoryError as error:
        _log.warning("no memory for CUDA graphs: each step launches its kernels one by one", error=str(error))
        torch.cuda.empty_cache()
    worker.probe()


def _measured(spec: ModelSpec, weights: Weights, engine: EngineConfig, max_len: int, estimate: Callable[[], KvShape]) -> int:
    """`step_bytes`; ConfigRejected where the device cannot even hold that step beside the weights: by `estimate`, which says what would."""
    try:
        return step_bytes(spec, weights, engine, max_len)
    except torch.OutOfMemoryError as error:
        estimate()
        raise ConfigRejected(f"a step of tokenBudget {engine.token_budget} does not fit beside the weights; lower tokenBudget") from error


def _shape(spec: ModelSpec, kv: KvCache, dtype: torch.dtype, rows: int) -> Shape:
    windows = tuple(sorted(set(spec.windows), key=lambda window: window or 0))
    split, arch = decode_config(spec.head_dim, kv.data.itemsize).split, arch_of(kv.data.device)
    whole = kv.scales is None
    config = choose_config(spec.head_dim, dtype, arch) if whole else quantised_config(spec.head_dim)
    return Shape(kv.block_size, windows, split, query_tile(spec.heads, spec.kv_heads, config), spare_row=rows + 1)


def compile_all(worker: GpuWorker, tokens: int) -> None:
    """Whatever steps of up to `tokens` tokens launch: from now on none waits for the compiler."""
    warm(worker)
    every = [linear for layer in worker.forward.decoder.weights.layers for linear in linears(layer)]
    for linear in {linear.compiled_as: linear for linear in every}.values():
        linear.warm()
    _warm_sizes(worker, tokens)


def warm(worker: GpuWorker) -> None:
    """Compile what steps of every ordinary kind launch: a prompt, copies of blocks, rows that are drawn with and without filters. Writes
    into the block that no plan names."""
    spare = worker.limits.blocks_total
    one = one_token(block=spare)
    two = np.zeros(2, np.int32)
    copied = np.full((1, 2), spare, np.int32)
    worker.execute(replace(one, starts=np.array([0, 2], np.int32), token_ids=two, positions=np.arange(2, dtype=np.int32), copies=copied))
    for sampling in (Sampling(1, temperature=1.0), Sampling(1, temperature=1.0, top_k=2)):
        worker.execute(replace(one, sampling=SamplingRows(random=draw_of(sampling, 0)[None])))


@torch.inference_mode()
def _warm_sizes(worker: GpuWorker, tokens: int) -> None:
    """Prompts of 3, 4, 5, 7, 9, 13, 17 … tokens, into the block that no plan names: a kernel may be compiled for few rows and for many.
    Where one ends and the other begins are numbers like 32, 48 or 384, and there is one size between any two of these."""
    limits = worker.limits
    sizes = (half * 2**power // 2 + 1 for power in range(1, tokens.bit_length()) for half in (2, 3))
    for count in (size for size in sizes if size <= tokens):
        plan = _full_step(count, min(limits.max_model_len, count), limits.block_size)
        plan = replace(plan, block_tables=np.full_like(plan.block_tables, limits.blocks_total))
        worker.forward.states(plan, np.array([count - 1]))


@torch.inference_mode()
def step_bytes(spec: ModelSpec, weights: Weights, engine: EngineConfig, max_len: int) -> int:
    """What steps take beside weights and KV, measured: a full budget of tokens with logits for each, as where a prompt is scored. To it
    comes what the graphs keep."""
    tokens, rows = max(engine.token_budget, engine.max_concurrency), engine.max_concurrency
    plan = _full_step(tokens, min(max_len, tokens), engine.block_size)
    limits = WorkerLimits(int(plan.block_tables.max()) + 1, engine.block_size, spec.vocab_size, max_len)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    worker = warm_worker(spec, weights, engine, limits, lambda _share: None, graphs=False)
    worker.forward.logits(plan, np.arange(tokens))
    torch.cuda.synchronize()
    step = torch.cuda.max_memory_allocated() - before - worker.forward.kv.nbytes
    kept = rows * spec.vocab_size * DTYPE.itemsize + step * rows // tokens + len(buckets(rows)) * _GRAPH_BYTES
    return step + kept + sampling_bytes(spec, engine) + STEP_FLOOR


def _full_step(tokens: int, length: int, block_size: int) -> StepPlan:
    """Prompts of `length` tokens, `tokens` in all."""
    starts = np.asarray([*range(0, tokens, length), tokens], np.int32)
    rows, width = starts.size - 1, -(-length // block_size)
    return StepPlan(
        step=0,
        rows=np.zeros(rows, np.int32),
        starts=starts,
        token_ids=np.zeros(tokens, np.int32),
        positions=(np.arange(tokens) % length).astype(np.int32),
        block_tables=np.arange(rows * width, dtype=np.int32).reshape(rows, width),
        sample=np.ones(rows, np.bool_),
    )
