"""Rotary embedding as config.json describes it: the base and how positions beyond the training length are squeezed in.

Called by `model.config`; `model.rope` makes tables of it. What no daemon computes, `pagoda_sizing.rope` refuses. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagoda_sizing.config import Config
from pagoda_sizing.rope import rope_of


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every position is divided by the factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Low frequencies are divided by the factor, high ones kept, a ramp between; cosines and sines times `attention_factor`."""

    factor: float
    beta_fast: float
    beta_slow: float
    attention_factor: float
    original_max_positions: int
    truncate: bool


@dataclass(frozen=True, slots=True)
class Rope:
    """The base, the scaling, and the positions that both together are good for."""

    theta: float
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None
    max_positions: int


def parse_rope(config: Config, theta: float) -> Rope:
    """What `config` says; `theta` is the family's own default of `rope_theta`."""
    kind, rope = rope_of(config)
    theta = rope.real("rope_theta", config.real("rope_theta", theta))
    positions = config.number("max_position_embeddings")
    if kind == "linear":
        return Rope(theta, LinearScaling(rope.real("factor")), positions)
    if kind == "llama3":
        return Rope(theta, _llama3(config, rope), positions)
    if kind == "yarn":
        scaling = _yarn(config, rope, positions)
        return Rope(theta, scaling, max(positions, int(scaling.original_max_positions * scaling.factor)))
    # "dynamic" changes no frequency up to max_position_embeddings, and beyond it a request's keys would depend on the longest
    # sequence that happened to run beside it: served exactly, and not beyond.
    return Rope(theta, None, positions)


def _llama3(config: Config, rope: Config) -> Llama3Scaling:
    original = _original(config, rope)
    return Llama3Scaling(rope.real("factor"), rope.real("low_freq_factor"), rope.real("high_freq_factor"), original)


def _yarn(config: Config, rope: Config, positions: int) -> YarnScaling:
    original = _original(config, rope, positions)
    factor = rope.real("factor", positions / original)
    return YarnScaling(
        factor=factor,
        beta_fast=rope.real("beta_fast", 32.0),
        beta_slow=rope.real("beta_slow", 1.0),
        attention_factor=rope.real("attention_factor", _yarn_attention(rope, factor)),
        original_max_positions=original,
        truncate=rope.flag("truncate") if rope.get("truncate") is not None else True,
    )


def _yarn_attention(rope: Config, factor: float) -> float:
    scales = [rope.real(key) for key in ("mscale", "mscale_all_dim") if rope.get(key)]
    if len(scales) == 2:
        return _mscale(factor, scales[0]) / _mscale(factor, scales[1])
    return _mscale(factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _original(config: Config, rope: Config, default: int | None = None) -> int:
    """The training length; a key beside the rope parameters wins over one in them, as in transformers."""
    key = "original_max_position_embeddings"
    found = config.optional(key) or rope.optional(key) or default
    return rope.number(key) if found is None else found
