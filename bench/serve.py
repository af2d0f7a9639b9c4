"""What serving over HTTP costs: ours, the bare engine and vLLM's server in turn; the front alone on a simulated device. Prints JSON.

`python -P bench/serve.py [--only model,front] [--rounds 2] [--peer vllm=PYTHON]`. PYTHON is the interpreter of an environment that has
vLLM. Bare engine, our server and the peer alternate run by run (A B A B), asked for the same prompts by the same raw client; a peer is
stopped while it is not asked. All share the machine's cores, the client too (its part is given): trust ratios and figures per CPU-second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE / "common"), str(HERE.parent / "tests")]

from engine_models import MODELS, Model, make_model, write_tokenizer
from pagoda_daemon.engine.start import ENGINE_ENV
from servers import NAME, Pagoda, Server, Vllm, cpu_seconds
from support.clients import lean_client
from support.clients.lean_client import Answer, Ask
from workers import Worker

PATH: Final = "/v1/completions"
FIRST_TOKENS: Final = 25
Run = Callable[[list[list[int]], int], dict[str, Any]]
SIMULATED_VOCAB: Final = 8192


def load(job: dict[str, Any]) -> dict[str, Any]:
    """The client's side of one run, in its own process."""
    options = {"model": NAME, "max_tokens": job["tokens"], "temperature": 0, "ignore_eos": True, "stream": True}
    bodies = [{**options, "prompt": prompt, "stream_options": {"include_usage": True}} for prompt in job["prompts"]]
    begun, before = time.perf_counter(), time.process_time()
    answers = list(lean_client.run(("127.0.0.1", job["port"]), [Ask(PATH, body) for body in bodies], job["connections"]))
    found = {"seconds": max(answer.ended for answer in answers) - begun, "client_cpu": time.process_time() - before}
    return {**found, **_summary(answers, job["tokens"])}


def _summary(answers: Sequence[Answer], tokens: int) -> dict[str, Any]:
    wrong = [answer for answer in answers if answer.status != 200 or answer.tokens != tokens]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(answers)} answers are wrong: {wrong[0].status} {wrong[0].tail[-500:]!r}")
    gaps = [b - a for answer in answers for a, b in pairwise(answer.stamps)]
    return {
        "tokens": sum(answer.tokens for answer in answers),
        "events": sum(answer.events for answer in answers),
        "reads": sum(len(answer.stamps) for answer in answers),
        "first_ms": statistics.median(answer.first for answer in answers) * 1000,
        "between_ms": statistics.median(gaps) * 1000,
    }


def served(server: Server, client: Worker, prompts: list[list[int]], tokens: int, connections: int) -> dict[str, Any]:
    """One run through HTTP, with the CPU of each part."""
    parts = server.parts()
    before = {part: sum(map(cpu_seconds, pids)) for part, pids in parts.items()}
    job = {"port": server.port, "prompts": prompts, "tokens": tokens, "connections": connections}
    found = client.do(job)
    return {**found, **{f"{part}_cpu": sum(map(cpu_seconds, pids)) - before[part] for part, pids in parts.items()}}


def of_model(model: Model, arguments: argparse.Namespace) -> dict[str, Any]:
    """The bare engine, our server and the peer on one model, in turn."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagoda-bench-")))
        make_model(model, directory)
        client = worker(stack, __file__, "--client")
        bare = worker(stack, str(HERE / "common" / "local_engine.py"), str(directory))
        servers: dict[str, Server] = {"pagoda": Pagoda(directory)}
        stack.callback(servers["pagoda"].close)
        for name, python in arguments.peer:
            servers[name] = Vllm(python, directory)
            stack.callback(servers[name].close)
            servers[name].stop(signal.SIGSTOP)
        runs: dict[str, Run] = {
            "engine": lambda prompts, tokens: bare.do({"prompts": prompts, "tokens": tokens}),
            **{name: asked(name, server, client) for name, server in servers.items()},
        }
        found = {f"n={rows}": compare(runs, model, rows, arguments.rounds) for rows in model.rows}
        return {**found, "first_token_ms": first_tokens(runs, model)}


def worker(stack: ExitStack, *argv: str) -> Worker:
    made = Worker([sys.executable, "-P", *argv], {**ENGINE_ENV, "PYTHONPATH": str(HERE / "common")})
    stack.callback(made.close)
    return made


def asked(name: str, server: Server, client: Worker) -> Run:
    def run(prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        if name != "pagoda":
            server.stop(signal.SIGCONT)
        found = served(server, client, prompts, tokens, len(prompts))
        if name != "pagoda":
            server.stop(signal.SIGSTOP)
        return found

    return run


def compare(runs: dict[str, Run], model: Model, rows: int, rounds: int) -> dict[str, Any]:
    """A B A B after a first run of each, which pays for its caches."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for run in runs.values():
        run(prompts_of(model.vocab, rows, model.prompt), 16)
    for _ in range(rounds):
        prompts = prompts_of(model.vocab, rows, model.prompt)
        for name, run in runs.items():
            found[name].append(run(prompts, tokens_of(model, rows)))
    return report(found)


def first_tokens(runs: dict[str, Run], model: Model) -> dict[str, float]:
    """Medians of one request alone, in turn; what HTTP adds is the median of the differences of neighbours."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(FIRST_TOKENS):
        prompts = prompts_of(model.vocab, 1, model.prompt)
        for name, run in runs.items():
            answer = run(prompts, 2)
            found[name].append(answer["first_token_s"] * 1000 if name == "engine" else answer["first_ms"])
    added = statistics.median(ours - bare for ours, bare in zip(found["pagoda"], found["engine"], strict=True))
    return {**{name: round(statistics.median(values), 2) for name, values in found.items()}, "added": round(added, 2)}


def tokens_of(model: Model, rows: int) -> int:
    """Alone, as many as the context holds: 128 tokens would take a fifth of a second, too short for a count of hundredths of CPU."""
    return model.answer if rows > 1 else 512 - model.prompt


def prompts_of(vocab: int, rows: int, length: int) -> list[list[int]]:
    """Nothing that could be shared."""
    return [[random.randrange(300, vocab) for _ in range(length)] for _ in range(rows)]


def report(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Each run's figures, and the ratios of the medians."""
    speed = {name: [run["tokens"] / run["seconds"] for run in runs] for name, runs in found.items()}
    middle = {name: statistics.median(values) for name, values in speed.items()}
    bare = statistics.median(run["tokens"] / run["cpu_seconds"] for run in found["engine"])
    ours = statistics.median(run["tokens"] / run["engine_cpu"] for run in found["pagoda"])
    return {
        "tokens_per_s": {name: rounded(values, 0) for name, values in speed.items()},
        "by_clock_over_engine": round(middle["pagoda"] / middle["engine"], 3),
        "tokens_per_engine_cpu_s": {"engine": round(bare), "pagoda": round(ours), "ratio": round(ours / bare, 3)},
        "over_peer": {name: round(middle["pagoda"] / value, 2) for name, value in middle.items() if name not in ("pagoda", "engine")},
        "between_ms": {name: rounded([run["between_ms"] for run in runs], 2) for name, runs in found.items() if name != "engine"},
        "first_ms": {name: rounded([run["first_ms"] for run in runs], 2) for name, runs in found.items() if name != "engine"},
        "cpu_us_per_token": {
            part: round(statistics.median(run[f"{part}_cpu"] / run["tokens"] for run in found["pagoda"]) * 1e6, 1)
            for part in ("front", "client", "engine")
        },
    }


def rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]


def of_front(arguments: argparse.Namespace) -> dict[str, Any]:
    """The front on a device that computes nothing: paced, where each token is a write of its own, and as fast as tokens can be made."""
    out: dict[str, Any] = {}
    for name, step_ms, rows in (("paced", arguments.step_ms, 64), ("flood", 0.0, 64)):
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagoda-bench-")))
            write_tokenizer(SIMULATED_VOCAB, directory)
            (directory / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "vocab_size": SIMULATED_VOCAB}))
            client = worker(stack, __file__, "--client")
            server = Pagoda(directory, testing={"simulated": {"stepMs": step_ms, "vocabSize": SIMULATED_VOCAB}})
            stack.callback(server.close)
            served(server, client, prompts_of(SIMULATED_VOCAB, rows, 8), 16, rows)
            runs = [served(server, client, prompts_of(SIMULATED_VOCAB, rows, 8), 400, rows) for _ in range(arguments.rounds)]
            out[name] = [front_figures(run, rows) for run in runs]
    return out


def front_figures(run: dict[str, Any], rows: int) -> dict[str, Any]:
    chunks = run["events"]
    return {
        "chunks_per_s": round(chunks / run["seconds"]),
        "chunks_per_front_cpu_s": round(chunks / run["front_cpu"]),
        "chunks_per_read": round(chunks / run["reads"], 2),
        "front_us_per_chunk": round(run["front_cpu"] / chunks * 1e6, 1),
        "engine_us_per_chunk": round(run["engine_cpu"] / chunks * 1e6, 1),
        "client_us_per_chunk": round(run["client_cpu"] / chunks * 1e6, 1),
        "streams": rows,
    }


def peer(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if name != "vllm" or not python:
        raise argparse.ArgumentTypeError(f"{text!r} must be vllm=PYTHON")
    return name, python


def client_loop() -> None:
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(load(json.loads(line))), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="model,front")
    parser.add_argument("--model", choices=list(MODELS), default="19m")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=4.0, help="of the simulated device, paced (default: %(default)s)")
    parser.add_argument("--peer", type=peer, action="append", default=[])
    parser.add_argument("--client", action="store_true", help="be the client")
    arguments = parser.parse_args()
    if arguments.client:
        client_loop()
        return
    random.seed(0)
    found: dict[str, Any] = {"cores": os.cpu_count()}
    if "model" in arguments.only:
        found[arguments.model] = of_model(MODELS[arguments.model], arguments)
    if "front" in arguments.only:
        found["front"] = of_front(arguments)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
