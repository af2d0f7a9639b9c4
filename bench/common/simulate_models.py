"""Models that bench/simulate.py and bench/step_time.py simulate."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def llama() -> dict[str, Any]:
    """The catalogue's config of Llama-3.1-8B."""
    known = json.loads(resources.files("pagoda_sizing").joinpath("data/models.json").read_text())
    config: dict[str, Any] = next(entry["config"] for entry in known if entry["name"] == "meta-llama/Llama-3.1-8B")
    return config
