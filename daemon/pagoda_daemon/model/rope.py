"""Rotary embedding: the tables of cosines and sines, and turning heads by them. Called by `model.llama`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pagoda_daemon.model.config import Llama3Scaling, ModelSpec


def rope_table(spec: ModelSpec, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [length, head_dim], computed in fp32 and then rounded, as transformers does."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / (spec.rope_theta**exponents)
    if spec.rope_scaling is not None:
        frequencies = _llama3(frequencies, spec.rope_scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `heads` [tokens, heads, head_dim] by the angles of their tokens' positions, [tokens, 1, head_dim] each."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """High frequencies stay, low ones are divided by the factor, those between are blended."""
    turns = scaling.original_max_positions * frequencies / (2 * math.pi)
    blend = ((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies
