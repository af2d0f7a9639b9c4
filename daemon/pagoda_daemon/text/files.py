"""Files of a model's directory, read with errors that name them. Called by `tokens` and `template_files`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pagoda_daemon.core.errors import ModelRejected


def read_json(path: Path, *, required: bool) -> dict[str, Any]:
    """A JSON object; {} if it is absent and not required. ModelRejected names the file and what is wrong with it."""
    if not present(path):
        if required:
            raise ModelRejected(f"{path.name} is missing in {path.parent}")
        return {}
    try:
        parsed = json.loads(read(path))
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path.name} is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ModelRejected(f"{path.name} is not a JSON object")
    return parsed


def present(path: Path) -> bool:
    """Whether it is a file; ModelRejected where that cannot be seen."""
    try:
        return path.is_file()
    except OSError as error:  # a directory on the way may not be entered
        raise ModelRejected(f"{path.name} in {path.parent} cannot be read: {error}") from error


def read(path: Path) -> str:
    """Its text; ModelRejected where it has none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelRejected(f"{path.name} in {path.parent} cannot be read: {error}") from error
