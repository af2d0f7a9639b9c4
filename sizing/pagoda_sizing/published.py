"""Real models with the parameter counts that their authors publish (data/models.json): what the arithmetic is checked against.

Called by `tables` and the tests; no decision reads it.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter


class Published(BaseModel):
    """One model: the keys of its config.json that carry arithmetic, its count, and where both were read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    parameters: int
    config_source: str
    count_source: str
    config: dict[str, Any]


def published() -> tuple[Published, ...]:
    """Every model in the data file."""
    text = resources.files("pagoda_sizing").joinpath("data/models.json").read_text(encoding="utf-8")
    return tuple(TypeAdapter(list[Published]).validate_json(text))


def published_model(name: str) -> Published:
    """The model of that name."""
    return next(entry for entry in published() if entry.name == name)
