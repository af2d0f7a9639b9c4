"""What sampling costs: microseconds per step of 32 rows over a vocabulary of 32k, per feature, all rows using it. Prints JSON.

`python -P bench/sampler.py [--rows 32] [--vocab 32000] [--threads 1]`. Logits are bf16 as a model's; "peaked" ones spread like a trained
model's, "flat" ones like a random model's, of which a wide top_p keeps thousands of tokens. The least CPU time of 15 rounds. To measure
as the engine runs, with its allocator settings: `MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=268435456`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import GREEDY, SamplingRows, ShapedRow
from pagoda_daemon.core.sampling import Sampling, Shaping, draw_of
from pagoda_daemon.runner.logprobs import answer_logprobs
from pagoda_daemon.runner.sampler import Sampler

KNOWN = 1024  # tokens of each row, half of them generated


def random_rows(rows: int, temperature: float = 1.0, **numbers: float) -> SamplingRows:
    """`numbers` by the names of `Sampling`."""
    draws = [draw_of(Sampling(max_tokens=1, temperature=temperature, **numbers), seed) for seed in range(rows)]
    return SamplingRows(random=np.stack(draws))


def shaped_rows(rows: int, vocab: int, shaping: Shaping) -> SamplingRows:
    draw = np.random.default_rng(0)
    tokens = [draw.integers(0, vocab, KNOWN).astype(np.int32) for _ in range(rows)]
    return SamplingRows(shaped=tuple(ShapedRow(at, shaping, known, KNOWN // 2) for at, known in enumerate(tokens)))


def settings(rows: int, vocab: int) -> Iterator[tuple[str, SamplingRows]]:
    """Each feature alone, and what models' generation_config.json say together."""
    yield "greedy", GREEDY
    yield "temperature 1", random_rows(rows)
    yield "top_k 20", random_rows(rows, top_k=20)
    yield "top_k 20, top_p 0.8, temperature 0.7", random_rows(rows, 0.7, top_k=20, top_p=0.8)
    yield "top_p 0.9, temperature 0.6", random_rows(rows, 0.6, top_p=0.9)
    yield "top_p 0.95", random_rows(rows, top_p=0.95)
    yield "min_p 0.05", random_rows(rows, min_p=0.05)
    yield "top_n_sigma 1", random_rows(rows, top_n_sigma=1)
    ids = np.arange(100, dtype=np.int32)
    shapings = {
        "repetition_penalty": Shaping(repetition=1.05),
        "frequency and presence_penalty": Shaping(frequency=0.1, presence=0.1),
        "logit_bias of 100": Shaping(bias_ids=ids, bias=np.ones(100, np.float32)),
        "3 bad_words": Shaping(bad_words=((1, 2), (3,), (4, 5, 6))),
        "allowed_token_ids of 100": Shaping(allowed=ids),
    }
    for name, shaping in shapings.items():
        yield name, shaped_rows(rows, vocab, shaping)


def least_us(work: Callable[[], object], rounds: int) -> float:
    """CPU time of this thread, which other load disturbs least; all of it at 1 thread."""
    work()
    took = []
    for _ in range(rounds):
        start = time.thread_time()
        work()
        took.append((time.thread_time() - start) * 1e6)
    return round(min(took), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rows", 32), ("vocab", 32_000), ("threads", 1), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    sampler, positions = Sampler(), np.arange(asked.rows, dtype=np.int32)
    base = torch.randn(asked.rows, asked.vocab, generator=torch.Generator().manual_seed(0))
    found: dict[str, dict[str, float]] = {}
    for kind, spread in (("peaked", 6.0), ("flat", 2.0)):
        logits = (base * spread).bfloat16()
        steps = {name: partial(sampler.sample, logits, rows, positions) for name, rows in settings(asked.rows, asked.vocab)}
        found[kind] = {name: least_us(step, asked.rounds) for name, step in steps.items()}
        tokens: Ints = logits.argmax(-1).numpy().astype(np.int32)
        for top in (0, 20):
            wanted = np.full(asked.rows, top, np.int32)
            found[kind][f"logprobs {top}"] = least_us(partial(answer_logprobs, logits, tokens, positions, wanted), asked.rounds)
    json.dump({"rows": asked.rows, "vocab": asked.vocab, "threads": asked.threads, "cpu_us_per_step": found}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
