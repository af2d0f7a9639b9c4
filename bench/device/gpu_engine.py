"""The whole engine on a GPU: the real loop, scheduler and worker in this process, random weights made on the device. For bench/gpu.py.

Variants are ablations of the same engine: `eager` is PyTorch op by op, `fused` our kernels launched one by one, `graphs` replays CUDA
graphs but waits for each step, `overlap` (what is served) launches a step while the one before computes. `adapters` is `overlap` with LoRA
adapters of rank 16 in memory.
"""

from __future__ import annotations

import math
import queue
import random
import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from gpu_device import Machine
from gpu_models import Model, digest, random_adapters
from gpu_numbers import Ceilings
from gpu_record import Measurement
from pagoda_contracts.launch import AdaptersConfig, EngineConfig
from pagoda_daemon.core.batch import StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import Failed, FromEngine, Ready, Shutdown, StepOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.loop import Engine
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.decoder import Decoder
from pagoda_daemon.runner.adapters import AdapterStore
from pagoda_daemon.runner.forward import TorchForward
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_daemon.runner.worker import Worker
from pagoda_daemon.simulated.replicas.engine import LocalWire

_REPLAYS = 20
VARIANTS = ("overlap", "adapters", "graphs", "fused", "eager")
_ADAPTERS = AdaptersConfig(max_loaded=32, max_rank=16)


@dataclass(frozen=True)
class Point:
    """`rows` requests at once of `prompt` tokens in, `answer` out; `temperature` 0 is greedy. Their `adapters` take turns; 0: none."""

    rows: int
    prompt: int
    answer: int
    temperature: float = 0.0
    top_p: float = 1.0
    adapters: int = 0

    @property
    def name(self) -> str:
        drawn = f" temperature {self.temperature} top_p {self.top_p}" if self.temperature else ""
        return f"rows {self.rows} in {self.prompt} out {self.answer}{drawn}" + (f" adapters {self.adapters}" if self.adapters else "")


@dataclass(frozen=True)
class Found:
    """Of one point: the median of the steps in which all rows decode, what that is in tokens per second, the time to the first token of
    the first request and to that of the last, the longest wait between two messages behind the first one, and tokens per second from the
    first request to the last token."""

    step_ms: float
    decode_tokens_per_s: float
    first_token_ms: float
    last_first_token_ms: float
    longest_wait_ms: float
    tokens_per_s: float
    tokens: int


class Sync:
    """A worker whose `launch` nobody sees: it waits for every step."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.limits = worker.limits
        self.adapters: AdapterStore | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        return self._worker.execute(plan)

    def probe(self) -> None:
        self._worker.probe()


def worker_of(model: Model, variant: str, engine: EngineConfig, limits: WorkerLimits) -> Worker:
    """As loading would build it, without files."""
    if variant == "eager":
        with model.weights.norm.device:
            kv = KvCache(model.spec, limits.blocks_total + 1, limits.block_size, torch.bfloat16)
            return ModelWorker(TorchForward(Decoder(model.spec, model.weights, limits.max_model_len), kv), limits)
    from pagoda_daemon.gpu.load import take_adapters, warm_worker  # not for `eager`: it needs Triton

    worker = warm_worker(model.spec, model.weights, engine, limits, lambda _share: None, graphs=variant not in ("fused", "adapters"))
    if variant == "adapters":
        store = take_adapters(worker, _ADAPTERS, lambda _share: None)
        adapters = random_adapters(model, _ADAPTERS.max_loaded, _ADAPTERS.max_rank)
        store.held.update(enumerate(adapters, 1))
        worker.adapters = replace(store, first=tuple(adapter.digest for adapter in adapters))
        return worker
    return worker if variant == "overlap" else Sync(worker)


class Served:
    """An engine on a thread of this process."""

    def __init__(self, model: Model, variant: str, engine: EngineConfig, limits: WorkerLimits) -> None:
        self._heard: queue.SimpleQueue[tuple[float, FromEngine]] = queue.SimpleQueue()
        self._wire = LocalWire(lambda message: self._heard.put((time.perf_counter(), message)))
        self._vocab = limits.vocab_size
        self._names = 0
        self.worker: Worker | None = None

        def build(_progress: Any) -> Worker:
            self.worker = worker_of(model, variant, engine, limits)
            return self.worker

        engine_loop = Engine(self._wire, engine, build, _now_ms)
        self._thread = threading.Thread(target=engine_loop.run, args=(lambda: False,), daemon=True)
        begun = time.perf_counter()
        self._thread.start()
        self._until(Ready)
        self.start_s = time.perf_counter() - begun

    def run(self, point: Point) -> Found:
        """Submit all at once, wait for all."""
        sampling = Sampling(
            max_tokens=point.answer, temperature=point.temperature, top_p=point.top_p, seed=1 if point.temperature else None
        )
        prompts = [tuple(random.randrange(3, self._vocab) for _ in range(point.prompt)) for _ in range(point.rows)]
        begun, left, stamps, first = time.perf_counter(), point.rows, [], {}
        for index, prompt in enumerate(prompts):
            self._names += 1
            adapter = digest(index % point.adapters) if point.adapters else ""
            self._wire.put(Submit(str(self._names), prompt, sampling, adapter=adapter))
        while left:
            stamp, message = self._until(StepOutput)
            for output in message.outputs:
                if output.token_ids:
                    first.setdefault(output.request_id, stamp - begun)
            stamps.append((stamp, sum(len(output.token_ids) for output in message.outputs)))
            left -= sum(output.finish_reason is not None for output in message.outputs)
        steps = [(b - a) * 1000 for (a, before), (b, count) in pairwise(stamps) if count == before == point.rows]
        step, tokens = statistics.median(steps or [math.nan]), sum(count for _, count in stamps)
        return Found(
            round(step, 3),
            round(1000 * point.rows / step, 1),
            round(1000 * min(first.values()), 2),
            round(1000 * max(first.values()), 2),
            round(1000 * max((b - a for (a, _), (b, _) in pairwise(stamps)), default=math.nan), 2),
            round(tokens / (stamps[-1][0] - begun), 1),
            tokens,
        )

    def close(self) -> None:
        self._wire.put(Shutdown())
        self._thread.join()

    def _until(self, kind: type) -> tuple[float, Any]:
        while True:
            stamp, message = self._heard.get(timeout=300)
            if isinstance(message, Failed):
                raise SystemExit(message.message)
            if isinstance(message, kind):
                return stamp, message


def limits_of(model: Model, points: tuple[Point, ...], engine: EngineConfig) -> WorkerLimits:
    """Room for the largest point and one block more per row."""
    longest = max(point.prompt + point.answer for point in points)
    blocks = max(point.rows * (-(-(point.prompt + point.answer) // engine.block_size) + 1) for point in points)
    return WorkerLimits(blocks, engine.block_size, model.spec.vocab_size, max(longest, engine.block_size))


NARROW = (Point(64, 1000, 64), Point(256, 1000, 48))
SERVED = (Point(1, 1000, 128), Point(8, 1000, 64), Point(64, 1000, 64), Point(256, 1000, 48), Point(1, 2048, 2), Point(1, 8000, 2))
DRAWN = (Point(64, 1000, 64, temperature=0.8, top_p=0.95),)
ABLATION = (Point(1, 1000, 64), Point(64, 1000, 64))
EXPERTS = (*ABLATION, Point(1, 8000, 2))
PROMPTS = (Point(1, 8000, 2), Point(64, 2000, 32))
QUANTISED = (Point(1, 1000, 128), Point(64, 1000, 64), Point(256, 1000, 48), Point(1, 8000, 2))
ADAPTED = (Point(64, 1000, 64), *(Point(64, 1000, 64, adapters=count) for count in (32, 8, 1)), Point(1, 1000, 64, adapters=1))
TINY = (Point(1, 20, 8), Point(5, 20, 8, temperature=0.8, top_p=0.95))
BUDGETS = (1024, 2048, 4096, 8192)


@dataclass(frozen=True)
class Trial:
    """An engine at some points. `engine`: what its EngineConfig has beside what all have."""

    model: str
    points: tuple[Point, ...]
    variant: str = "overlap"
    engine: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 1

    @property
    def name(self) -> str:
        return " ".join((f"engine {self.model} {self.variant}", *(f"{name} {value}" for name, value in self.engine.items())))


def measurements(machine: Machine, _arguments: Any) -> list[Measurement]:
    """Each model in each variant. Without a device, a tiny one."""
    return [_measurement(trial, machine) for trial in (_tiny() if machine.dry else _trials())]


def _tiny() -> list[Trial]:
    adapted = tuple(replace(point, adapters=2) for point in TINY)
    plain = [Trial("tiny", adapted if variant == "adapters" else TINY, variant) for variant in VARIANTS]
    return [*plain, Trial("tiny experts", TINY[:1]), Trial("tiny", TINY[:1], engine={"quantization": "int8"})]


def _trials() -> list[Trial]:
    served = [Trial(name, SERVED + DRAWN) for name in ("8b", "0.6b")]
    served.append(Trial("8b", ADAPTED, "adapters"))
    ablations = [Trial(name, ABLATION, variant) for name in ("8b", "0.6b") for variant in VARIANTS[2:]]
    experts = [Trial("experts", EXPERTS, variant) for variant in VARIANTS if variant not in ("graphs", "adapters")]
    narrow = [Trial("8b", QUANTISED, engine={"quantization": kind}) for kind in ("fp8", "int8", "int4")]
    kept = [Trial("8b", NARROW, engine={"kvDtype": kind}) for kind in ("float8", "int8")]
    budgets = [Trial("8b", PROMPTS, engine={"tokenBudget": budget}, rank=2) for budget in BUDGETS]
    return served + narrow + kept + ablations + experts + budgets


def _measurement(trial: Trial, machine: Machine) -> Measurement:
    rank = (trial.rank, VARIANTS.index(trial.variant), trial.model != "8b")
    return Measurement(trial.name, rank, lambda ceilings: measure(trial, machine, ceilings))


def measure(trial: Trial, machine: Machine, ceilings: Ceilings) -> dict[str, Any]:
    """At each of its points, after one short run of it."""
    model, points = Model.of(trial.model, machine.device), trial.points
    rows = max(point.rows for point in points)
    common = {"maxConcurrency": rows, "tokenBudget": 8192, "blockSize": 64, "prefixCaching": False}
    engine = EngineConfig.model_validate(common | dict(trial.engine))
    if engine.quantization is not None:
        model = model.quantised(engine.quantization)
    served = Served(model, trial.variant, engine, limits_of(model, points, engine))
    found: dict[str, Any] = {"start_s": round(served.start_s, 2), "points": {}}
    for point in points:
        served.run(replace(point, prompt=min(point.prompt, 64), answer=4))
        result = served.run(point)
        found["points"][point.name] = asdict(result) | {"percent_of_floor": _share(model, point, result, (engine, ceilings))}
        if (device := _graph_ms(served.worker, point)) is not None:
            found["points"][point.name]["graph_ms"] = device
    served.close()
    return found


def _graph_ms(worker: Worker | None, point: Point) -> float | None:
    """How long the device alone takes for a step that decodes in the middle of the answers: what a step takes beyond is the host's."""
    forward: Any = getattr(worker, "forward", None)
    graphs: Any = getattr(forward, "_graphs", None)
    if graphs is None:
        return None
    with torch.inference_mode():
        forward.logits(_middle(point, forward.kv.block_size), np.arange(point.rows))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_REPLAYS):
        graphs.replay_last()
    end.record()
    end.synchronize()
    return round(begin.elapsed_time(end) / _REPLAYS, 3)


def _middle(point: Point, block_size: int) -> StepPlan:
    rows, length = np.arange(point.rows, dtype=np.int32), point.prompt + point.answer // 2
    width = -(-length // block_size)
    tables = np.arange(point.rows * width, dtype=np.int32).reshape(point.rows, width)
    starts = np.arange(point.rows + 1, dtype=np.int32)
    slots = rows % point.adapters + 1 if point.adapters else None
    return StepPlan(0, rows, starts, rows, np.full_like(rows, length - 1), tables, np.ones(point.rows, np.bool_), adapters=slots)


def _share(model: Model, point: Point, found: Found, where: tuple[EngineConfig, Ceilings]) -> float:
    """How near a step that decodes is to reading weights and the rows' keys and values once, at the bandwidth of a copy. Of experts, those
    that rows ask for, if each asks for any as likely as for another."""
    (engine, ceilings), spec, item = where, model.spec, torch.bfloat16.itemsize
    read = model.weight_bytes - (0 if spec.tied else spec.vocab_size * spec.hidden * item)
    if (experts := spec.experts) is not None:
        idle = (1 - experts.per_token / experts.count) ** point.rows
        read -= round(idle * sum(spec.sparse) * experts.count * 3 * spec.hidden * experts.intermediate * item)
    read += point.rows * (point.prompt + point.answer // 2) * spec.kv_token_bytes(item if engine.kv_dtype is None else 1)
    return round(100 * read / ceilings.copy_gb_s / 1e6 / found.step_ms, 1)


def _now_ms() -> float:
    return time.monotonic() * 1000
