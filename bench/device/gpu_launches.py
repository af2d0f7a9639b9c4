"""What a step that is not a CUDA graph costs the host: launches kept by pagoda_kernels.gpu.launch beside Triton's own dispatch.

`host_us` is how long the host takes until all is launched, `step_us` until the tokens are there; medians of steps in turn. `pieces` are
host times of single calls. For bench/gpu.py.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_device import Machine
from gpu_engine import Model, Point, _middle, limits_of
from gpu_numbers import Ceilings
from gpu_record import Measurement
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.gpu.load import warm_worker
from pagoda_daemon.gpu.worker import GpuWorker
from pagoda_kernels.gpu.launch import Cached, why_not
from torch.nn import functional

_ROUNDS = 15
_CALLS = 100  # a device takes about 1,000 launches before the host has to wait for it
_DECODES, _PROMPTS = (1, 64), (16, 128, 2048)
_BLOCK = 64


def measurements(machine: Machine, _arguments: Any) -> list[Measurement]:
    """Of a small model, which waits for its host, and of a large one."""
    names = ("tiny",) if machine.dry else ("0.6b", "8b")
    return [
        Measurement(f"launches {name}", (1, 4, at), lambda ceilings, name=name: measure(name, machine, ceilings))
        for at, name in enumerate(names)
    ]


def measure(name: str, machine: Machine, _ceilings: Ceilings) -> dict[str, Any]:
    """Each kind of step with and without kept launches, in turn."""
    model = Model.of(name, machine.device)
    decodes, prompts = ((2,), (5,)) if machine.dry else (_DECODES, _PROMPTS)
    points = tuple(Point(rows, 40 if machine.dry else 1000, 8) for rows in decodes) + tuple(Point(1, tokens, 1) for tokens in prompts)
    engine = EngineConfig.model_validate({"maxConcurrency": max(decodes), "tokenBudget": 8192, "blockSize": _BLOCK, "prefixCaching": False})
    worker = warm_worker(model.spec, model.weights, engine, limits_of(model, points, engine), lambda _share: None, graphs=False)
    plans = {f"{point.rows} rows decode": _middle(point, _BLOCK) for point in points[: len(decodes)]}
    plans |= {f"prompt of {tokens}": _prompt(tokens) for tokens in prompts}
    if machine.dry:
        return {"steps": {what: worker.execute(plan).token_ids.tolist() for what, plan in plans.items()}}
    steps = {what: _step(worker, plan) for what, plan in plans.items()}
    return {"not kept because": why_not(), "steps": steps, "pieces": _pieces(model, machine.device)}


def _step(worker: GpuWorker, plan: StepPlan) -> dict[str, Any]:
    found: dict[str, list[tuple[float, float]]] = {"kept": [], "dispatched": []}
    try:
        for turn in range(2 * (_ROUNDS + 1)):
            side = ("kept", "dispatched")[turn % 2]
            Cached.enabled = side == "kept"
            found[side].append(_once(worker, plan))
    finally:
        Cached.enabled = True
    return {side: _medians(times[1:]) for side, times in found.items()}  # the first of each may compile


def _once(worker: GpuWorker, plan: StepPlan) -> tuple[float, float]:
    begun = time.perf_counter()
    launched = worker.launch(plan)
    launched_at = time.perf_counter()
    launched.result()
    return launched_at - begun, time.perf_counter() - begun


def _medians(times: list[tuple[float, float]]) -> dict[str, float]:
    host, step = (round(1e6 * statistics.median(one), 1) for one in zip(*times, strict=True))
    return {"host_us": host, "step_us": step}


def _prompt(tokens: int) -> StepPlan:
    blocks = np.arange(-(-tokens // _BLOCK), dtype=np.int32)[None]
    ids = np.arange(tokens, dtype=np.int32)
    return StepPlan(0, np.zeros(1, np.int32), np.array([0, tokens], np.int32), ids % 7, ids, blocks, np.ones(1, np.bool_))


@torch.inference_mode()
def _pieces(model: Model, place: torch.device) -> dict[str, float]:
    """Microseconds of the host per call, on one row: what is left beside our launches is torch's."""
    weight = model.weights.layers[0].output.weight
    x = torch.zeros(1, weight.shape[1], dtype=weight.dtype, device=place)
    out, turned = torch.empty(1, weight.shape[0], dtype=weight.dtype, device=place), weight.T
    calls: dict[str, Callable[[], Any]] = {
        "linear": lambda: functional.linear(x, weight),
        "mm into": lambda: torch.mm(x, turned, out=out),
        "empty": lambda: x.new_empty(1, 64),
        "view": lambda: x[:1],
    }
    return {name: _host_us(call) for name, call in calls.items()}


def _host_us(call: Callable[[], Any]) -> float:
    times = []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append(time.perf_counter() - begun)
    return round(1e6 * statistics.median(times) / _CALLS, 2)
