"""The engine's speed on this machine's CPU: the real loop, scheduler and worker in this process, greedy, random weights. Prints JSON.

`python -P bench/engine.py [--models 19m,160m,1.1b] [--rounds 2] [--quantization int8] [--peer vllm=PYTHON] [--peer llama.cpp=PYTHON]`
PYTHON is the interpreter of an environment that has the peer (bench/peers/). Ours and peers alternate, run by run (A B A B); whoever is
not running is stopped. A bare eager decode loop and a read of memory in the same process say how far from the floor a step is.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "common"))

from engine_models import MODELS, Bare, Model, bandwidth, make_model
from local_engine import Ours, Run
from pagoda_daemon.runner.host import Host
from workers import Worker


class Peer:
    """Another engine in a process of its own, stopped while it is not asked."""

    def __init__(self, name: str, python: str, directory: Path, quantization: str | None) -> None:
        script = Path(__file__).parent / "peers" / f"{name.replace('.', '_')}_peer.py"
        self._worker = Worker([python, str(script), str(directory), quantization or "none"])
        self.start_s: float = self._worker.hello["start_seconds"]
        self._worker.signal(signal.SIGSTOP)

    def run(self, prompts: list[list[int]], tokens: int) -> Run:
        self._worker.signal(signal.SIGCONT)
        answer = self._worker.do({"prompts": prompts, "tokens": tokens})
        self._worker.signal(signal.SIGSTOP)
        return Run(answer["tokens"] / answer["seconds"])

    def close(self) -> None:
        self._worker.close()


def measure(model: Model, directory: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """One model: every engine at every number of rows, `rounds` times in turn."""
    stack = ExitStack()
    bare = Bare.of(directory)
    # Before any engine has threads in this process: behind one the same loop took 9.3 instead of 3.5 ms a step.
    floor = {rows: statistics.median(bare.step_ms(rows, model.prompt + model.answer // 2) for _ in range(3)) for rows in model.rows}
    ours = Ours(directory, arguments.quantization)
    stack.callback(ours.close)
    peers = {name: Peer(name, python, directory, arguments.quantization) for name, python in arguments.peer}
    for one in peers.values():
        stack.callback(one.close)
    with stack:
        return compare(model, floor, ours, peers, arguments.rounds)


def compare(model: Model, floor: dict[int, float], ours: Ours, peers: dict[str, Peer], rounds: int) -> dict[str, Any]:
    """In turn, at every number of rows; `floor` are the bare loop's steps in milliseconds."""
    threads = Host().cores()
    found: dict[str, Any] = {"start_s": {"pagoda": round(ours.start_s, 2)} | {name: round(peer.start_s, 2) for name, peer in peers.items()}}
    for rows in model.rows:
        asked = {name: engine for name, engine in {"pagoda": ours, **peers}.items() if rows == 1 or name != "llama.cpp"}
        runs: dict[str, list[Run]] = {name: [] for name in asked}
        reads = []
        for engine in asked.values():
            engine.run(prompts(model, rows), 8)  # the first run of anything pays for its caches
        for _ in range(rounds):
            for name, engine in asked.items():
                runs[name].append(engine.run(prompts(model, rows), model.answer))
            reads.append(bandwidth(threads))
        found[f"n={rows}"] = report(runs, floor[rows], reads, ours.weight_bytes)
    found["profile"] = ours.profile()
    return found


def prompts(model: Model, rows: int) -> list[list[int]]:
    """Nothing that could be shared."""
    return [[random.randrange(3, model.vocab) for _ in range(model.prompt)] for _ in range(rows)]


def report(runs: dict[str, list[Run]], floor: float, reads: list[float], weight_bytes: int) -> dict[str, Any]:
    """Figures per run, and the ratios of the medians."""
    middle = {name: statistics.median(run.tokens_per_s for run in found) for name, found in runs.items()}
    step, read = statistics.median(run.step_ms for run in runs["pagoda"]), statistics.median(reads)
    return {
        "tokens_per_s": {name: [round(run.tokens_per_s, 1) for run in found] for name, found in runs.items()},
        "ratio": {name: round(middle["pagoda"] / value, 2) for name, value in middle.items() if name != "pagoda"},
        "first_token_ms": round(statistics.median(run.first_token_s for run in runs["pagoda"]) * 1000, 1),
        "step_ms": round(step, 2),
        "bare_step_ms": round(floor, 2),
        "bare_over_ours": round(floor / step, 2),
        "read_gb_s": round(read, 1),
        "share_of_read": round(weight_bytes / step / 1e6 / read, 2),
    }


def peer(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if name not in ("vllm", "llama.cpp") or not python:
        raise argparse.ArgumentTypeError(f"{text!r}: must be vllm=PYTHON or llama.cpp=PYTHON")
    return name, python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quantization", choices=["int8"])
    parser.add_argument("--peer", type=peer, action="append", default=[])
    arguments = parser.parse_args()
    random.seed(0)
    for name in arguments.models.split(","):
        with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as directory:
            print(f"{name}: making the model", file=sys.stderr)
            make_model(MODELS[name], Path(directory))
            found = measure(MODELS[name], Path(directory), arguments)
        print(json.dumps({"model": name, "quantization": arguments.quantization, **found}), flush=True)


if __name__ == "__main__":
    main()
