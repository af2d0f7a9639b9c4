"""Probes while a replica is as busy as can be: 16 prompts of maximum length in a loop, each probe asked once a second. Prints JSON.

`python -P bench/probes.py [--seconds 180] [--model 19m|DIR]`. A probe is missed when it is not answered in a second, as kubelet has it, and
red when it says no. The replica's own thresholds are set to 5 s instead of 120: it must not mistake work for a hang. Replica, load and
prober share the machine's cores.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from pagoda_contracts.launch import DaemonConfig, EngineConfig, HealthConfig, Listen, ModelConfig
from pagoda_contracts.metrics import DEEP_CHECKS
from pagoda_contracts.names import PATH_LIVE, PATH_READY, PATH_STARTUP
from pagoda_daemon.simulated.replicas.text import tiny_model_dir

sys.path.insert(0, str(Path(__file__).parent))

PATHS: Final = (PATH_STARTUP, PATH_LIVE, PATH_READY)
PROMPTS: Final = 16
ANSWER: Final = 4
THRESHOLD: Final = "5s"


@dataclass
class Seen:
    """What prober and load saw."""

    latencies: list[float] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    red: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def model_dir(wanted: str, folder: Path) -> Path:
    """A directory is taken as it is; a name of bench/common's models is made with random weights and a tokenizer of bytes."""
    if Path(wanted).is_dir():
        return Path(wanted)
    from common.engine_models import MODELS, make_model

    made = tiny_model_dir(folder / "model")
    make_model(MODELS[wanted], made)
    return made


def start(model: Path, run_dir: Path) -> tuple[subprocess.Popen[str], dict[str, Any], list[dict[str, Any]]]:
    """The process, its addresses and its log so far (grows)."""
    config = DaemonConfig(
        model=ModelConfig(path=str(model), served_names=("bench",)),
        engine=EngineConfig(max_concurrency=PROMPTS),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=str(run_dir)),
        health=HealthConfig(progress_timeout=THRESHOLD, deep_probe_every=THRESHOLD),
    )
    path = run_dir / "daemon.json"
    path.write_text(config.model_dump_json(by_alias=True, exclude_none=True))
    process = subprocess.Popen([sys.executable, "-P", "-m", "pagoda_daemon", "--config", str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines: list[dict[str, Any]] = []
    for line in process.stdout:
        lines.append(json.loads(line))
        if lines[-1]["event"] == "listening":
            break
    else:
        raise SystemExit(f"the replica did not start: {lines}")
    threading.Thread(target=lambda: lines.extend(json.loads(line) for line in process.stdout or ()), daemon=True).start()
    return process, lines[-1], lines


def probe(port: int, path: str, seen: Seen | None) -> int:
    """Status, 0 without an answer; a connection each time, as kubelet's."""
    began = time.perf_counter()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        connection.request("GET", path)
        answer = connection.getresponse()
        said = answer.read().decode().strip()
        connection.close()
    except OSError as error:
        if seen is not None:
            seen.missed.append(f"{path}: {error}")
        return 0
    if seen is not None:
        seen.latencies.append(time.perf_counter() - began)
        if answer.status != 200:
            seen.red.append(f"{path}: {said}")
    return answer.status


def ask_on(url: str, number: int, length: int, over: threading.Event, answers: list[int], failed: list[str]) -> None:
    """One prompt after the other, none like another: nothing is known of them."""
    draw = random.Random(number)
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        while not over.is_set():
            ids = [draw.randrange(256) for _ in range(length - ANSWER)]
            body = {"model": "bench", "prompt": ids, "max_tokens": ANSWER, "ignore_eos": True, "temperature": 0}
            try:
                answers.append(client.post("/v1/completions", json=body).raise_for_status().json()["usage"]["total_tokens"])
            except httpx.HTTPError as error:
                failed.append(str(error))


def load(url: str, length: int) -> None:
    """In a process of its own, so that it takes nothing of the prober's: until stdin ends, then what came of it."""
    over, answers, failed = threading.Event(), [], []  # type: ignore[var-annotated]
    threads = [threading.Thread(target=ask_on, args=(url, number, length, over, answers, failed)) for number in range(PROMPTS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    counted = list(answers)
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"answers": counted, "failed": failed}))


def canaries(url: str) -> Counter[str]:
    text = httpx.get(f"{url}/metrics", timeout=10).text
    found = re.findall(rf'^{DEEP_CHECKS.name}_total\{{.*outcome="(\w+)".*\}} ([0-9.]+)$', text, re.MULTILINE)
    return Counter({outcome: int(float(count)) for outcome, count in found if float(count)})


def context_of(url: str) -> int:
    return int(httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["max_model_len"])


def measure(ports: dict[str, Any], seconds: float) -> tuple[Seen, Counter[str], int]:
    url, seen = f"http://127.0.0.1:{ports['http']}", Seen()
    while probe(ports["probes"], PATH_READY, None) != 200:
        time.sleep(0.1)
    length = context_of(url)
    argv = [sys.executable, "-P", __file__, "--load", url, "--length", str(length)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loading:
        began = time.monotonic()
        for second in range(int(seconds)):
            time.sleep(max(0.0, began + second - time.monotonic()))
            for path in PATHS:
                probe(ports["probes"], path, seen)
        found = canaries(url)
        said = json.loads(loading.communicate()[0])
    seen.answers, seen.failed = said["answers"], said["failed"]
    return seen, found, length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--model", default="19m")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--length", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load, arguments.length)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = model_dir(arguments.model, Path(folder))
        process, ports, lines = start(model, Path(folder))
        try:
            seen, found, length = measure(ports, arguments.seconds)
        finally:
            process.terminate()
            process.wait()
    millis = sorted(1000 * latency for latency in seen.latencies) or [0.0]
    result = {
        "seconds": arguments.seconds,
        "prompts_of": length - ANSWER,
        "probes": len(PATHS) * int(arguments.seconds),
        "missed": seen.missed,
        "red": seen.red,
        "p50_ms": round(millis[len(millis) // 2], 2),
        "p99_ms": round(millis[min(len(millis) - 1, int(0.99 * len(millis)))], 2),
        "max_ms": round(millis[-1], 2),
        "false_alarms": [line for line in lines if line["event"] == "no_progress"],
        "canaries": found,
        "load_average": os.getloadavg()[0],
        "requests": len(seen.answers),
        "requests_failed": seen.failed[:5],
        "tokens_per_s": round(sum(seen.answers) / arguments.seconds),
        "exit_code": process.returncode,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
