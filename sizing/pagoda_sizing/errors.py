"""What the arithmetic refuses, one tree; every message names the value and what is accepted.

SizingError
├── UnknownArchitecture   a model_type whose tensors this package cannot count
├── BadConfig             a config.json that is unreadable, incomplete or contradicts itself
├── UnknownDevice         no such device or MIG profile in the catalogue
├── UnknownQuantisation   no such format of weights or KV cache
└── Impossible            a request that no answer can satisfy (negative context, context beyond the model, a split head, …)
"""

from __future__ import annotations


class SizingError(ValueError):
    """Base of everything refused here; the CLI prints it as one line and exits 2."""


class UnknownArchitecture(SizingError):
    """The model_type is not one whose tensors are known."""


class BadConfig(SizingError):
    """config.json cannot be read, lacks a key or contradicts itself."""


class UnknownDevice(SizingError):
    """No such device."""


class UnknownQuantisation(SizingError):
    """No such quantisation."""


class Impossible(SizingError):
    """The request cannot be met by any device or model."""


def positive(name: str, value: float) -> None:
    """Refuse zero, negative and not-a-number before they reach a division."""
    if not value > 0 or value == float("inf"):
        raise Impossible(f"{name} must be a finite number above 0, got {value}")
