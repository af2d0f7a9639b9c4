"""Rows for the sampler's tests: one setting for all rows, or a mixture, and one draw of a token per row."""

from __future__ import annotations

import numpy as np
import torch
from pagoda_daemon.nouns.batch import GREEDY, Ints, RandomRows, SamplingRows, ShapedRow, Shaping
from pagoda_daemon.runner.sampler import Sampler


def random_rows(rows: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0, seed: int = 7) -> RandomRows:
    return RandomRows(
        np.full(rows, temperature, np.float32),
        np.full(rows, top_p, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, min_p, np.float32),
        np.full(rows, seed, np.uint64),
    )


def places(rows: int, start: int = 0) -> Ints:
    """Rows that differ in position only."""
    return np.arange(start, start + rows, dtype=np.int32)


def draw_tokens(logits: torch.Tensor, random: RandomRows, start: int = 0) -> Ints:
    sampled = Sampler().sample(logits, SamplingRows(random=random), places(logits.shape[0], start))
    assert sampled.errors == {}
    return sampled.tokens


def shaped_row(at: int, shaping: Shaping, prompt: list[int], answer: list[int]) -> ShapedRow:
    return ShapedRow(at, shaping, np.asarray([*prompt, *answer], np.int32), len(prompt))


def greedy_tokens(logits: torch.Tensor, *shaped: ShapedRow) -> list[int]:
    sampled = Sampler().sample(logits, SamplingRows(shaped=shaped) if shaped else GREEDY, places(logits.shape[0]))
    assert sampled.errors == {}
    return sampled.tokens.tolist()
