"""Trace: what arrives when, read from JSON lines or drawn. Called by `command`, bench and tests; pure but for reading a file.

A line is {"arrival_ms", "prompt_tokens", "output_tokens"} and, where wanted, "tenant", "weight", "tier", "priority", "deadline_ms" (after
the arrival), "n", and "prefix" with "prefix_tokens": jobs with the same prefix begin with the same tokens.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.core.messages import Submit
from pagoda_daemon.core.sampling import Sampling

_POOL = 1 << 17
# Odd, so that seeds in a row come to all places, and neighbours far from each other.
_STRIDE = 40_503


class TokenPool:
    """Random tokens, cut from one long list: drawing them for each job would cost more than scheduling it."""

    def __init__(self, vocab_size: int, longest: int) -> None:
        drawn: list[int] = np.random.Generator(np.random.SFC64(0)).integers(0, vocab_size, _POOL + longest).tolist()
        self._drawn = drawn

    def tokens(self, seed: int, count: int) -> list[int]:
        """The same for the same seed; for _POOL seeds in a row, each begins somewhere else."""
        at = seed * _STRIDE % _POOL
        return self._drawn[at : at + count]


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a trace; its answer ends after `output_tokens`."""

    arrival_ms: float
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    weight: float = 1.0
    tier: Literal["interactive", "batch"] = "interactive"
    priority: int = 0
    deadline_ms: float | None = None
    n: int = 1
    prefix: str = ""
    prefix_tokens: int = 0

    def submit(self, number: int, pool: TokenPool) -> Submit:
        """The message; its tokens are the job's own, those of a prefix the name's."""
        shared = min(self.prefix_tokens, self.prompt_tokens) if self.prefix else 0
        prompt = pool.tokens(zlib.crc32(self.prefix.encode()), shared) + pool.tokens(number, self.prompt_tokens - shared)
        deadline = None if self.deadline_ms is None else int(self.arrival_ms + self.deadline_ms)
        return Submit(
            str(number),
            tuple(prompt),
            Sampling(self.output_tokens),
            n=self.n,
            tenant=self.tenant,
            weight=self.weight,
            tier=self.tier,
            priority=self.priority,
            deadline_ms=deadline,
        )


def read(path: Path) -> list[Job]:
    """Jobs in order of arrival; ConfigRejected names the line."""
    decoder = msgspec.json.Decoder(Job)
    jobs = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigRejected(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            jobs.append(_checked(decoder.decode(line)))
        except (msgspec.DecodeError, ValueError) as error:
            raise ConfigRejected(f"{path}, line {number}: {error}") from error
    if not jobs:
        raise ConfigRejected(f"{path} holds no job")
    return sorted(jobs, key=lambda job: job.arrival_ms)


def _checked(job: Job) -> Job:
    if job.arrival_ms < 0 or job.prompt_tokens < 1 or job.output_tokens < 1 or job.prefix_tokens < 0:
        raise ValueError("arrival_ms and prefix_tokens must be at least 0, prompt_tokens and output_tokens at least 1")
    return job


def drawn(count: int, per_second: float, seed: int, **fields: object) -> list[Job]:
    """Poisson arrivals; prompts of 512 and answers of 128 tokens in the mean, both exponential, 5 % of prompts at 4,096."""
    draw = np.random.Generator(np.random.SFC64(seed))
    arrivals = np.cumsum(draw.exponential(1000.0 / per_second, count))
    # 95 % with mean 323 and 5 % at 4,096 have the mean 512.
    prompts = np.where(draw.random(count) < 0.05, 4096, np.clip(draw.exponential(323.0, count), 1, 4096)).astype(int)
    outputs = np.clip(draw.exponential(128.0, count), 1, 1024).astype(int)
    made = zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
    return [msgspec.convert({"arrival_ms": a, "prompt_tokens": p, "output_tokens": o, **fields}, Job) for a, p, o in made]


def merged(traces: Iterable[Sequence[Job]]) -> list[Job]:
    """Several traces as one, in order of arrival."""
    return sorted((job for trace in traces for job in trace), key=lambda job: job.arrival_ms)
