"""Rows for the sampler's tests: one setting for all rows, or a mixture, and one draw of a token per row."""

from __future__ import annotations

import numpy as np
import torch
from pagoda_daemon.core.arrays import Ints
from pagoda_daemon.core.batch import GREEDY, SamplingRows, ShapedRow
from pagoda_daemon.core.sampling import DRAW, NUMBERS, OFF, DrawRows, Sampling, Shaping, draw_of
from pagoda_daemon.runner.sampler import Sampler


def random_rows(rows: int, temperature: float = 1.0, seed: int = 7, **numbers: float) -> DrawRows:
    """`numbers` by the names of `Sampling`."""
    return np.full(rows, draw_of(Sampling(max_tokens=1, temperature=temperature, **numbers), seed), DRAW)


def not_off(name: str) -> float:
    """A value of this number of `Sampling` that changes something, and that a float32 can hold."""
    number = NUMBERS[name]
    return 7 if isinstance(OFF[name], int) else float(np.float32((number.low + number.high) / 2 + 0.125))


def places(rows: int, start: int = 0) -> Ints:
    """Rows that differ in position only."""
    return np.arange(start, start + rows, dtype=np.int32)


def draw_tokens(logits: torch.Tensor, random: DrawRows, start: int = 0) -> Ints:
    sampled = Sampler().sample(logits, SamplingRows(random=random), places(logits.shape[0], start))
    assert sampled.errors == {}
    return sampled.tokens


def shaped_row(at: int, shaping: Shaping, prompt: list[int], answer: list[int]) -> ShapedRow:
    return ShapedRow(at, shaping, np.asarray([*prompt, *answer], np.int32), len(prompt))


def greedy_tokens(logits: torch.Tensor, *shaped: ShapedRow) -> list[int]:
    sampled = Sampler().sample(logits, SamplingRows(shaped=shaped) if shaped else GREEDY, places(logits.shape[0]))
    assert sampled.errors == {}
    return sampled.tokens.tolist()
