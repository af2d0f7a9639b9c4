"""SigLIP, the vision tower of Gemma 3, with the projector into the text model. Called by `families`; counts parameters only."""

from __future__ import annotations

from pagoda_sizing.config import Config
from pagoda_sizing.errors import BadConfig


def siglip(config: Config, text_hidden: int) -> int:
    """Parameters of tower and projector."""
    if config.text("model_type") != "siglip_vision_model":
        raise BadConfig(f"config.json: vision_config.model_type must be siglip_vision_model, got {config.get('model_type')!r}")
    hidden, inner = config.number("hidden_size"), config.number("intermediate_size")
    patch, image = config.number("patch_size"), config.number("image_size")
    mlp = 2 * hidden * inner + inner + hidden
    layer = 4 * (hidden * hidden + hidden) + mlp + 4 * hidden
    embedding = 3 * patch * patch * hidden + hidden + (image // patch) ** 2 * hidden
    projector = hidden * text_hidden + hidden
    pooling = 4 * (hidden * hidden + hidden) + mlp + 3 * hidden if config.flag("vision_use_head") else 0
    return embedding + config.number("num_hidden_layers") * layer + 2 * hidden + pooling + projector
