"""A model's matrices on a GPU: what they are held in, how many bytes that takes, and reading them. Called by `gpu.load`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from pagoda_contracts.launch import EngineConfig
from pagoda_sizing.stored import conflict

from pagoda_daemon.model.as_stored import held_form, load_as_stored, stored_bytes, stored_sources
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.loader import Reading, load_tensors
from pagoda_daemon.model.quantised import FORMATS, Quantiser, not_quantised, quantised_bytes
from pagoda_daemon.model.weights import Weights, allocate, destinations, weight_bytes

DTYPE: Final = torch.bfloat16
"""Of everything that is not quantised."""


def not_in_format(spec: ModelSpec, engine: EngineConfig, place: torch.device) -> str | None:
    """Why matrices cannot be held in `engine.quantization`; None if they can, or if it is absent."""
    if engine.quantization is None:
        return None
    stored = "" if spec.stored is None else conflict(spec.stored.form, engine.quantization)
    return stored or not_quantised(spec, engine.quantization, _capability(place))


def _capability(place: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(place) if place.type == "cuda" else None


def form_of(spec: ModelSpec, engine: EngineConfig, place: torch.device) -> str | None:
    """What matrices are held in, as asked or as stored; None: the model's dtype."""
    return engine.quantization or held_form(spec, _capability(place))


def bytes_of(directory: Path, spec: ModelSpec, form: str | None) -> int:
    """Bytes of the weights in a form; ModelRejected if the files are not those of the model."""
    if form is None:
        return weight_bytes(spec, DTYPE)
    if spec.stored is None or spec.stored.form != form:
        return quantised_bytes(spec, DTYPE, FORMATS[form])
    return stored_bytes(spec, DTYPE, stored_sources(directory, spec))


def read_weights(directory: Path, spec: ModelSpec, place: torch.device, form: str | None, progress: Callable[[float], None]) -> Weights:
    """The weights on the device, with its matrices in a form."""
    if form is None:
        with place:
            weights = allocate(spec, DTYPE)
        load_tensors(directory, destinations(spec, weights), progress, Reading(stored=spec.stored))
        return weights
    if spec.stored is not None and spec.stored.form == form:
        return load_as_stored(directory, spec, place, DTYPE, progress)
    reading = Quantiser(spec, DTYPE, place, FORMATS[form])
    load_tensors(directory, reading.places, progress, Reading(reading.filled, spec.stored))
    return reading.weights()
