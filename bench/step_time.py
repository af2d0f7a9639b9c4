"""Steps sized by time against steps of a fixed budget. Prints JSON.

`python -P bench/step_time.py [--only simulated,engine] [--rounds 2]`. Simulated: three traces through the real scheduler, for a model of
8 B on devices of the catalogue; what counts is goodput. Engine: this machine's CPU and a model of 160 M, fixed and sized in turn (A B A B):
gaps between tokens of streams beside a long prompt, and tokens per second of 16 requests at once. Steps and CPU time are counted, as the
clock of a busy machine says little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent / "common"))

import numpy as np
from engine_models import MODELS, make_model
from local_engine import Ours
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.simulated.device.pace import Pace
from pagoda_daemon.simulated.device.virtual import Metronome
from pagoda_daemon.simulated.replay.report import Objective, Report, report
from pagoda_daemon.simulated.replay.run import Simulation
from pagoda_daemon.simulated.replay.trace import Job, drawn, merged
from pagoda_sizing.devices import find
from pagoda_sizing.families import parse_model
from simulate_models import llama

CONTEXT: Final = 2048
STREAMS, LONG, BURST = 4, 1024, 16
# By device: requests per second, tokens of a full step, and what a client calls good.
DEVICES: Final = {"cpu": (0.25, 512, Objective(60_000.0, 400.0)), "l4": (1.2, 2048, Objective(10_000.0, 250.0))}


def chat(per_s: float, count: int) -> list[Job]:
    """Prompts of 512 tokens in the mean, a twentieth of them 4,096 long."""
    return drawn(count, per_s, seed=1)


def documents(per_s: float, count: int) -> list[Job]:
    """Short conversations, and for each twenty of them a document of 7,000 tokens that is to be summed up."""
    draw = random.Random(2)
    talks = [replace_job(job, min(job.prompt_tokens, 200)) for job in drawn(count, per_s, seed=3)]
    last = talks[-1].arrival_ms
    return merged([talks, [Job(draw.uniform(0.0, last), 7000, 100) for _ in range(count // 20)]])


def bursts(per_s: float, count: int) -> list[Job]:
    """Eight requests of 600 tokens at once, among single ones."""
    single, group = drawn(count // 2, per_s / 2, seed=4), range(8)
    last = single[-1].arrival_ms
    begins = np.random.Generator(np.random.SFC64(5)).uniform(0.0, last, count // 16)
    return merged([single, [Job(begin, 600, 120) for begin in begins.tolist() for _ in group]])


def replace_job(job: Job, prompt: int) -> Job:
    return Job(job.arrival_ms, prompt, job.output_tokens)


TRACES: Final[dict[str, Callable[[float, int], list[Job]]]] = {"chat": chat, "documents": documents, "bursts": bursts}


def simulated(requests: int) -> dict[str, Any]:
    """Every trace on every device, by the objective of the device."""
    found: dict[str, Any] = {}
    for device, (per_s, budget, objective) in DEVICES.items():
        config = llama()
        pace = Pace(parse_model(config), find(device), config["vocab_size"])
        worker = Metronome(pace.limits(16, 8192), pace.milliseconds)
        limits = replace(Limits.of(worker.limits, 64, budget), queue_tokens=1 << 40, committed_blocks=1 << 40)
        for name, trace in TRACES.items():
            jobs = trace(per_s, requests)
            runs = {
                kind: report(Simulation(jobs, worker, replace(limits, itl_ms=itl_ms)).run(), objective)
                for kind, itl_ms in (("fixed", math.inf), ("sized", objective.itl_ms))
            }
            found[f"{device} {name}"] = {kind: figures(one) for kind, one in runs.items()} | {
                "goodput_ratio": round(runs["sized"].goodput_tokens_per_s / max(1e-9, runs["fixed"].goodput_tokens_per_s), 2),
                "throughput_ratio": round(runs["sized"].output_tokens_per_s / runs["fixed"].output_tokens_per_s, 3),
            }
    return found


def figures(found: Report) -> dict[str, Any]:
    return {
        "goodput_tokens_per_s": round(found.goodput_tokens_per_s, 1),
        "good": f"{found.good_requests}/{found.requests}",
        "itl_p50_ms": round(found.itl_ms.p50, 1),
        "itl_p99_ms": round(found.itl_ms.p99, 1),
        "ttft_p50_ms": round(found.ttft_ms.p50),
        "ttft_p99_ms": round(found.ttft_ms.p99),
        "steps": found.steps,
    }


def on_engine(rounds: int, name: str) -> dict[str, Any]:
    """Fixed and sized in turn on one model, both loaded all the time."""
    model = MODELS[name]
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as directory:
        make_model(model, Path(directory), CONTEXT)
        engines = {
            kind: Ours(Path(directory), None, maxModelLen=CONTEXT, itl_ms=itl_ms) for kind, itl_ms in (("fixed", math.inf), ("sized", None))
        }
        found: dict[str, dict[str, list[Any]]] = {kind: defaultdict(list) for kind in engines}
        for round_ in range(rounds + 1):
            for kind, engine in engines.items():
                beside, burst = beside_a_long_prompt(engine, model.vocab), at_once(engine, model.vocab)
                if round_:  # the first run of anything pays for its caches, and its step costs are not known yet
                    found[kind]["beside_a_long_prompt"].append(beside)
                    found[kind]["at_once"].append(burst)
        for engine in engines.values():
            engine.close()
    return {"model": name, **found}


def beside_a_long_prompt(engine: Ours, vocab: int) -> dict[str, Any]:
    """Gaps of STREAMS streams from the moment on when a prompt of LONG tokens comes, until it has its first token."""
    streams = [engine.ask(drawn_prompt(vocab, 32), 1900) for _ in range(STREAMS)]
    stamps: dict[str, list[float]] = defaultdict(list)
    for _ in range(40):
        hear(engine, stamps)
    long, asked = engine.ask(drawn_prompt(vocab, LONG), 1), time.perf_counter()
    while long not in stamps:
        hear(engine, stamps)
    ended = stamps[long][0]
    gaps = [b - a for one in streams for a, b in pairwise(stamps[one]) if asked < b <= ended]
    before = [b - a for one in streams for a, b in pairwise(stamps[one]) if b <= asked]
    engine.end(streams)
    return {
        "decode_ms": round(float(np.median(before)) * 1000, 1),
        "itl_p50_ms": round(float(np.median(gaps)) * 1000, 1),
        "itl_p99_ms": round(float(np.percentile(gaps, 99)) * 1000, 1),
        "itl_max_ms": round(max(gaps) * 1000, 1),
        "steps": len(gaps) // STREAMS,
        "long_prompt_ttft_ms": round((ended - asked) * 1000),
    }


def at_once(engine: Ours, vocab: int) -> dict[str, Any]:
    """BURST requests of 512 tokens in and 32 out."""
    before = cpu_s()
    run = engine.run([drawn_prompt(vocab, 512) for _ in range(BURST)], 32)
    spent = cpu_s() - before
    return {
        "tokens_per_s": round(run.tokens_per_s, 1),
        "tokens_per_cpu_s": round(run.tokens / spent, 1),
        "first_token_ms": round(run.first_token_s * 1000),
    }


def hear(engine: Ours, stamps: dict[str, list[float]]) -> None:
    stamp, outputs = engine.hear()
    for output in outputs:
        stamps[output.request_id].append(stamp)


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drawn_prompt(vocab: int, length: int) -> list[int]:
    return [random.randrange(3, vocab) for _ in range(length)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="simulated,engine")
    parser.add_argument("--requests", type=int, default=400, help="of a simulated trace (default: %(default)s)")
    parser.add_argument("--model", choices=list(MODELS), default="160m")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    random.seed(0)
    found: dict[str, Any] = {"cores": os.cpu_count()}
    if "simulated" in arguments.only:
        found["simulated"] = simulated(arguments.requests)
    if "engine" in arguments.only:
        found["engine"] = on_engine(arguments.rounds, arguments.model)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
