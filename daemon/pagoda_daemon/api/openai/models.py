"""What /v1/models answers with. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct, frozen=True):
    """One entry of /v1/models. Of an adapter `root` is the digest of its content, and `parent` the model's name."""

    id: str
    created: int
    root: str
    max_model_len: int | None
    object: Literal["model"] = "model"
    owned_by: str = "pagoda"
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True):
    """/v1/models."""

    data: tuple[ModelCard, ...]
    object: Literal["list"] = "list"
