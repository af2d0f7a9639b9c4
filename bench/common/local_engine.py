"""Our engine without a front: the real loop, scheduler and worker on a thread of this process, driven through memory.

Imported by bench/engine.py. As a program it is what bench/serve.py compares the served engine with: reads one JSON job per line on stdin,
{"prompts": [[ids]], "tokens": n}, answers {"seconds", "tokens", "cpu_seconds", "first_token_s"} per line on stdout.
"""

from __future__ import annotations

import json
import math
import os
import queue
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine_models import CONTEXT
from pagoda_contracts.launch import DaemonConfig
from pagoda_daemon.core.messages import Failed, FromEngine, Ready, Shutdown, StepOutput, Submit
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.engine.loop import Engine
from pagoda_daemon.runner.forward import NativeForward
from pagoda_daemon.runner.model_worker import ModelWorker
from pagoda_daemon.simulated.replicas.engine import LocalWire


@dataclass
class Run:
    """One workload: output tokens per second, time to the first token, and the medians of its pure decode steps."""

    tokens_per_s: float
    first_token_s: float = 0.0
    step_ms: float = 0.0
    tokens: int = 0


class Ours:
    """Our engine on a thread of this process."""

    def __init__(self, directory: Path, quantization: str | None, **more: Any) -> None:
        """`more` are fields of the DaemonConfig's engine."""
        engine = {"maxModelLen": CONTEXT, "maxConcurrency": 64, "prefixCaching": False, "quantization": quantization, **more}
        self._config = DaemonConfig.model_validate({"model": {"path": str(directory), "servedNames": ["m"]}, "engine": engine})
        self._heard: queue.SimpleQueue[tuple[float, FromEngine]] = queue.SimpleQueue()
        self._wire = LocalWire(lambda message: self._heard.put((time.perf_counter(), message)))
        self._names = 0
        begun = time.perf_counter()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self._until(Ready)
        self.start_s = time.perf_counter() - begun

    def run(self, prompts: list[list[int]], tokens: int) -> Run:
        begun, left, stamps, produced = time.perf_counter(), len(prompts), [], 0
        for prompt in prompts:
            self._names += 1
            self._wire.put(Submit(str(self._names), tuple(prompt), Sampling(max_tokens=tokens)))
        while left:
            stamp, message = self._until(StepOutput)
            stamps.append((stamp, len(message.outputs)))
            produced += sum(len(output.token_ids) for output in message.outputs)
            left -= sum(output.finish_reason is not None for output in message.outputs)
        steps = [(b - a) * 1000 for (a, _), (b, count) in pairwise(stamps) if count == len(prompts)]
        return Run(produced / (stamps[-1][0] - begun), stamps[0][0] - begun, statistics.median(steps or [math.nan]), produced)

    @property
    def weight_bytes(self) -> int:
        """What a step at one row reads of weights."""
        return self._worker.forward.decoder.read_bytes if isinstance(self._worker.forward, NativeForward) else 0

    def profile(self) -> dict[str, float]:
        """Shares of the forward pass so far, by stage."""
        forward = self._worker.forward
        spent = forward.decoder.spent() if isinstance(forward, NativeForward) else {}
        return {stage: round(count / sum(spent.values()), 3) for stage, count in spent.items()}

    def close(self) -> None:
        self._wire.put(Shutdown())
        self._thread.join()

    def _serve(self) -> None:
        Engine(self._wire, self._config.engine, self._load, lambda: time.monotonic() * 1000).run(lambda: False)

    def _load(self, progress: Any) -> ModelWorker:
        self._worker = ModelWorker.load(self._config, progress)
        return self._worker

    def _until(self, kind: type) -> tuple[float, Any]:
        while True:
            stamp, message = self._heard.get(timeout=600)
            if isinstance(message, Failed):
                raise SystemExit(message.message)
            if isinstance(message, kind):
                return stamp, message


def main() -> None:
    """Until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the engine logs is not an answer
    ours = Ours(Path(sys.argv[1]), None)
    print(json.dumps({"start_seconds": ours.start_s}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        before = time.process_time()
        run = ours.run(job["prompts"], job["tokens"])
        found = {"seconds": run.tokens / run.tokens_per_s, "tokens": run.tokens, "cpu_seconds": time.process_time() - before}
        print(json.dumps({**found, "first_token_s": run.first_token_s}), file=answers)


if __name__ == "__main__":
    main()
