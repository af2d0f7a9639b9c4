"""The flags of `serve` for LoRA adapters → `adapters` of a DaemonConfig. Called by `stand_alone`.

Names are vLLM's where they mean the same.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from pagoda_daemon.core.errors import ConfigRejected


def add_lora_flags(serve: argparse.ArgumentParser) -> None:
    """Absent ones are None or empty."""
    serve.add_argument("--enable-lora", action="store_true", help="serve LoRA adapters (docs/lora.md)")
    serve.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME=PATH", help="adapters to load at the start")
    serve.add_argument("--max-loras", type=int, metavar="N", help="names of adapters at the same time (default: 8)")
    serve.add_argument("--max-lora-rank", type=int, metavar="RANK", help="largest rank of an adapter (default: 64)")
    serve.add_argument("--lora-dir", metavar="DIR", help="directory below which /v1/load_lora_adapter may load (default: it loads none)")
    serve.add_argument("--admin-api-key", metavar="KEY", help="key that loads and unloads adapters, and does nothing else")


def adapters_of(given: argparse.Namespace) -> dict[str, Any] | None:
    """None without --enable-lora; ConfigRejected where another flag needs it."""
    values = {"maxLoaded": given.max_loras, "maxRank": given.max_lora_rank, "directory": given.lora_dir and _absolute(given.lora_dir)}
    named = {key: value for key, value in values.items() if value is not None}
    if not given.enable_lora:
        if named or given.lora_modules:
            raise ConfigRejected("--lora-modules, --max-loras, --max-lora-rank and --lora-dir need --enable-lora")
        return None
    return {**named, "modules": [_module(text) for text in given.lora_modules]}


def _module(text: str) -> dict[str, str]:
    """NAME=PATH, or vLLM's JSON with the fields name and path."""
    try:
        found = json.loads(text) if text.startswith("{") else dict(zip(("name", "path"), text.split("=", 1), strict=True))
        return {"name": found["name"], "path": _absolute(found["path"])}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigRejected(f"--lora-modules must be NAME=PATH, or JSON with name and path, got {text[:200]!r}") from error


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
