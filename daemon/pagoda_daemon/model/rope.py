"""Rotary embedding: the tables of cosines and sines, and turning heads by them. Called by `model.decoder`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.scaling import LinearScaling, Llama3Scaling, YarnScaling


def rope_table(spec: ModelSpec, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [length, head_dim], computed in fp32 and then rounded, as transformers does."""
    frequencies, factor = _frequencies(spec)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `heads` [tokens, heads, head_dim] by the angles of their tokens' positions, [tokens, 1, head_dim] each."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def _frequencies(spec: ModelSpec) -> tuple[Tensor, float]:
    """Radians per position for each pair, and what cosines and sines are multiplied by."""
    wavelengths = spec.rope_theta ** (torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim)
    frequencies = 1.0 / wavelengths
    match spec.rope_scaling:
        case None:
            return frequencies, 1.0
        case LinearScaling(factor):
            return frequencies / factor, 1.0
        case Llama3Scaling() as scaling:
            return _llama3(frequencies, scaling), 1.0
        case YarnScaling() as scaling:
            return _yarn(frequencies, spec.rope_theta, scaling), scaling.attention_factor


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """High frequencies stay, low ones are divided by the factor, those between are blended."""
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    blend = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def _yarn(frequencies: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    """Pairs that turn more than `beta_fast` times over the training length stay, those below `beta_slow` are divided."""
    pairs = frequencies.numel()

    def pair_of(turns: float) -> float:
        return pairs * math.log(scaling.original_max_positions / (turns * 2 * math.pi)) / math.log(theta)

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    # 0.001 where both ends fall together: the step is then as steep as in transformers.
    divided = ((torch.arange(pairs, dtype=torch.float32) - low) / (high - low or 0.001)).clamp(0.0, 1.0)
    return frequencies / scaling.factor * divided + frequencies * (1 - divided)
