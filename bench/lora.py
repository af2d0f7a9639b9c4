"""What LoRA adapters cost on this machine's CPU: decoded tokens per second of CPU time, by how many adapters the rows have. Prints JSON.

`python -P bench/lora.py [--model 160m] [--rows 32] [--rank 16] [--adapters 0,1,8,32]`
`native` is the daemon without adapters. The others compute with torch, as a daemon with adapters does; 0 of them is its base model. Time of
the CPU, not of the clock, so that other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pagoda_contracts.launch import AdaptersConfig, EngineConfig

sys.path.insert(0, str(Path(__file__).parent / "common"))

from engine_models import CONTEXT, MODELS, make_model
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.lora.modules import modules_of
from pagoda_daemon.model.config import ModelSpec, read_spec
from pagoda_daemon.model.lowrank import Adapter, fused
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.load import load_forward
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_daemon.scheduler.admission import Arrival, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State

STEPS = 48
PROMPT = 32


def worker_of(directory: Path, rows: int, adapters: AdaptersConfig | None) -> ModelWorker:
    engine = EngineConfig(max_model_len=CONTEXT, max_concurrency=rows, token_budget=rows * PROMPT, threads=1)
    loaded = load_forward(directory, engine, Host(), lambda _done: None, adapters)
    return ModelWorker(loaded.forward, loaded.limits, loaded.adapters)


def random_adapter(spec: ModelSpec, rank: int, seed: int) -> Adapter:
    """It changes every linear map."""
    torch.manual_seed(seed)
    parts: dict[tuple[int, Any], list[Any]] = {}
    for module in modules_of(spec).values():
        parts.setdefault((module.layer, module.part), []).append(module)
    layers: list[dict[Any, Any]] = [{} for _ in range(spec.layers)]
    for (layer, part), modules in parts.items():
        pairs = [tuple(0.02 * torch.randn(shape).bfloat16() for shape in ((rank, one.inputs), (one.outputs, rank))) for one in modules]
        layers[layer][part] = fused(pairs, [one.outputs for one in modules])  # type: ignore[arg-type]
    return Adapter(f"sha256:{seed}", rank, tuple(layers))


def tokens_per_cpu_second(worker: ModelWorker, rows: int, adapters: list[Adapter]) -> float:
    """Of decode steps in which every row takes part."""
    state = State(Limits.of(worker.limits, rows, rows * PROMPT, prefix_caching=False))
    for adapter in adapters:
        slot = state.adapters.hold(adapter.digest)
        if slot is not None and worker.adapters is not None:
            worker.adapters.held[slot] = adapter
    for row in range(rows):
        digest = adapters[row % len(adapters)].digest if adapters else ""
        prompt = tuple(range(10 + row, 10 + row + PROMPT))
        submit(state, Submit(f"r{row}", prompt, Sampling(max_tokens=STEPS + 4), adapter=digest), Arrival(0.0, row))
    begun = 0.0
    for step in range(STEPS + 2):
        if step == 2:
            begun = time.process_time()
        made = plan(state, 0.0)
        assert made is not None
        commit(state, worker.execute(made), float(step))
    return rows * STEPS / (time.process_time() - begun)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="160m")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", default="0,1,8,32")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        make_model(MODELS[given.model], directory)
        spec = read_spec(directory)
        found = {"native": tokens_per_cpu_second(worker_of(directory, given.rows, None), given.rows, [])}
        worker = worker_of(directory, given.rows, AdaptersConfig(max_rank=given.rank))
        for count in map(int, given.adapters.split(",")):
            adapters = [random_adapter(spec, given.rank, seed) for seed in range(count)]
            found[f"{count} adapters"] = tokens_per_cpu_second(worker, given.rows, adapters)
    sys.stdout.write(f"{json.dumps({name: round(rate, 1) for name, rate in found.items()}, indent=2)}\n")


if __name__ == "__main__":
    main()
