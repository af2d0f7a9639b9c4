"""What LoRA adapters cost on this machine's CPU: decoded tokens per second of CPU time, by how many adapters the rows have. Prints JSON.

`python -P bench/lora.py [--model 160m] [--rows 32] [--rank 16] [--adapters 0,1,8,32] [--quantization int8] [--torch] [--rounds 14]`
One daemon's worker with adapters computes every case, in turns: base, 1 adapter, 8 …, base, 1 adapter … A share is the median over the
rounds of a case against the base of the same round. 0 adapters are rows without one, in the daemon with adapters; base is a daemon
without. Time of the CPU, not of the clock, so that other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagoda_contracts.launch import AdaptersConfig, EngineConfig

sys.path[:0] = [str(Path(__file__).parent / "common"), str(Path(__file__).parents[1] / "tests")]

from engine_models import CONTEXT, MODELS, make_model
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.lora.load import fused_adapter, packed_adapter
from pagoda_daemon.model.config import ModelSpec, read_spec
from pagoda_daemon.runner.adapters import Readable
from pagoda_daemon.runner.host import Host
from pagoda_daemon.runner.load import load_forward
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_daemon.scheduler.admission import Arrival, submit
from pagoda_daemon.scheduler.commit import commit
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.scheduler.plan import plan
from pagoda_daemon.scheduler.state import State
from support.engine.random_adapters import matrices

PROMPT = 8
WARM = 2
"""Steps that do not count: the prompts, and the first decode."""

TORCHS_BLOCK = 32
"""A size of blocks that the native ops do not have."""


def worker_of(directory: Path, given: argparse.Namespace, adapters: AdaptersConfig | None) -> ModelWorker:
    engine = EngineConfig(
        max_model_len=CONTEXT,
        max_concurrency=given.rows,
        token_budget=given.rows * PROMPT,
        threads=1,
        quantization=given.quantization,
        block_size=TORCHS_BLOCK if given.torch else 16,
    )
    loaded = load_forward(directory, engine, Host(), lambda _done: None, adapters)
    return ModelWorker(loaded.forward, loaded.limits, loaded.adapters)


def random_adapter(spec: ModelSpec, rank: int, seed: int, *, native: bool) -> Readable:
    """It changes every linear map."""
    found = matrices(spec, seed, lambda _module: rank)
    return packed_adapter(found, spec) if native else fused_adapter(found, spec)


def submitted(worker: ModelWorker, given: argparse.Namespace, adapters: list[Readable]) -> State:
    """Every row has one of `adapters` in turn, none where there are none."""
    state = State(Limits.of(worker.limits, given.rows, given.rows * PROMPT, prefix_caching=False))
    for adapter in adapters:
        slot = state.adapters.hold(adapter.digest)
        if slot is not None and worker.adapters is not None:
            worker.adapters.held[slot] = adapter
    for row in range(given.rows):
        digest = adapters[row % len(adapters)].digest if adapters else ""
        prompt = tuple(range(10 + row, 10 + row + PROMPT))
        submit(state, Submit(f"r{row}", prompt, Sampling(max_tokens=given.steps + 2 * WARM), adapter=digest), Arrival(0.0, row))
    return state


def tokens_per_cpu_second(worker: ModelWorker, given: argparse.Namespace, adapters: list[Readable]) -> float:
    """Of decode steps in which every row takes part, the median step."""
    state, taken = submitted(worker, given, adapters), []
    for step in range(given.steps + WARM):
        begun = time.process_time()
        made = plan(state, 0.0)
        assert made is not None
        commit(state, worker.execute(made), float(step))
        taken.append(time.process_time() - begun)
    return float(given.rows / statistics.median(taken[WARM:]))


def rounds(directory: Path, given: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Tokens per second of each case, once a round."""
    spec = read_spec(directory)
    base, worker = worker_of(directory, given, None), worker_of(directory, given, AdaptersConfig(max_rank=given.rank))
    counts = [int(count) for count in given.adapters.split(",")]
    known = [random_adapter(spec, given.rank, seed, native=not given.torch) for seed in range(max(counts))]
    for _ in range(given.rounds):
        found = {"base": tokens_per_cpu_second(base, given, [])}
        for count in counts:
            found[f"{count} adapters"] = tokens_per_cpu_second(worker, given, known[:count])
        yield found


def report(found: list[dict[str, float]], given: argparse.Namespace) -> dict[str, Any]:
    """Medians, and the range of the shares."""
    shares = {name: sorted(one[name] / one["base"] for one in found) for name in found[0]}
    return {
        "model": given.model,
        "quantization": given.quantization,
        "by": "torch" if given.torch else "native ops",
        "cpu": cpu(),
        "rows": given.rows,
        "rank": given.rank,
        "tokens_per_cpu_second": {name: round(statistics.median(one[name] for one in found), 1) for name in found[0]},
        "share_of_base": {name: round(statistics.median(each), 3) for name, each in shares.items()},
        "shares": {name: [round(one, 3) for one in each] for name, each in shares.items()},
    }


def cpu() -> dict[str, Any]:
    """Its name, and what of its instructions matters here: a figure without them means nothing."""
    lines = dict(line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in lines.items()}
    wanted = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")
    return {"name": fields.get("model name"), "instructions": [name for name in wanted if name in fields.get("flags", "").split()]}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="160m")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", default="0,1,8,32")
    parser.add_argument("--quantization", choices=("int8",))
    parser.add_argument("--torch", action="store_true", help="what a daemon does where the native ops cannot be used")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=14)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_model(MODELS[given.model], Path(folder))
        found = list(rounds(Path(folder), given))
    sys.stdout.write(f"{json.dumps(report(found, given), indent=2)}\n")


if __name__ == "__main__":
    main()
