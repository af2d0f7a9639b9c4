"""Which chat templates a model's directory has, and for what. As transformers reads and writes them. Called by `tokens`.

One template is called "default". A second one, "tool_use", writes the conversations that have tools, if the model has it. They are
chat_template.jinja beside additional_chat_templates/*.jinja, else `chat_template` in tokenizer_config.json: a string or a list of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pagoda_daemon.core.errors import ModelRejected
from pagoda_daemon.text.files import present, read

DEFAULT: Final = "default"
WITH_TOOLS: Final = "tool_use"
_NAMES: Final = (DEFAULT, WITH_TOOLS)
_FILE: Final = "chat_template.jinja"
_FOLDER: Final = "additional_chat_templates"


def template_sources(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name; empty if the model has none. ModelRejected names what cannot be read. Files win over tokenizer_config.json (`config`)."""
    files = {DEFAULT: directory / _FILE, WITH_TOOLS: directory / _FOLDER / f"{WITH_TOOLS}.jinja"}
    found = {name: read(path) for name, path in files.items() if present(path)}
    return found or _named(directory, config.get("chat_template"))


def _named(directory: Path, given: Any) -> dict[str, str]:
    if given is None:
        return {}
    entries = given if isinstance(given, list) else [{"name": DEFAULT, "template": given}]
    if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries):
        raise ModelRejected(
            f"tokenizer_config.json in {directory}: chat_template is a list; its entries must be objects with name and template"
        )
    return {entry["name"]: _text(directory, entry.get("template")) for entry in entries if entry["name"] in _NAMES}


def _text(directory: Path, source: Any) -> str:
    if isinstance(source, str):
        return source
    raise ModelRejected(f"tokenizer_config.json in {directory}: chat_template must be a string or a list of objects, got {source!r:.64}")
