"""Where `pagoda plan` finds config.json: a published model, a file of this machine, or the report of an inspection."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from pagoda_sizing.config import parse_json
from pagoda_sizing.errors import BadConfig
from pagoda_sizing.published import published

from pagoda_cli.errors import CliError
from pagoda_cli.inspected import at_hand, report_of
from pagoda_cli.kubectl import Access

LARGEST_CONFIG: Final = 1 << 20
HUB: Final = "hf://"
ACCEPTED: Final = "a model's folder or its config.json"
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


class Found(NamedTuple):
    """A model's config.json. `name`: the last word of its address or folder; `uri`: empty if only its files are known."""

    config: dict[str, Any]
    name: str
    uri: str = ""


def find_model(model: str, access: Access | None = None) -> Found:
    """Returns the model that a user names; CliError says what is accepted instead. `access`: the cluster to ask, if any."""
    if model == "-":
        return Found(_config(_standard_input(), "standard input"), "model")
    if model.startswith(HUB):
        return _on_the_hub(model, access)
    if "://" in model:
        raise CliError(f"{model}: pagoda plan connects to no source; give hf://ORG/NAME, {ACCEPTED}, or - for standard input")
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    return Found(_read(file), file.absolute().parent.name)


def _standard_input() -> str:
    try:
        return sys.stdin.read(LARGEST_CONFIG + 1)
    except UnicodeDecodeError as error:
        raise CliError("standard input: not UTF-8 text") from error


def _on_the_hub(uri: str, access: Access | None) -> Found:
    name = uri.removeprefix(HUB).rstrip("/")
    if not _REPOSITORY.fullmatch(name):
        raise CliError(f"{uri}: must be hf://ORG/NAME, such as hf://{published()[0].name}")
    uri, last = f"{HUB}{name}", name.rpartition("/")[2]
    known = {entry.name: entry.config for entry in published()}
    if name in known:
        return Found(known[name], last, uri)
    hub = hub_cache(os.environ)
    file = cached(hub, name)
    if file is not None:
        return Found(_read(file), last, uri)
    asked = access is not None and at_hand(access, os.environ)
    if access is not None and asked and (report := report_of(access, uri)):
        return Found(_config(report, "the report of an inspection"), last, uri)
    nowhere = "the cluster that kubectl reads shows no inspection of it" if asked else "no cluster was asked for an inspection of it"
    close = get_close_matches(name, known, n=2)
    hint = f"Did you mean {' or '.join(f'{HUB}{one}' for one in close)}? " if close else ""
    raise CliError(
        f"{uri} is not one of the {len(known)} models that pagoda plan knows by name, {hub} has no config.json of it, and {nowhere}. {hint}"
        f"Give {ACCEPTED}, or --kubeconfig of a cluster with a service that has it, or - and that service's ConfigMap: "
        "kubectl get configmap SERVICE-model -o jsonpath='{.data.model\\.json}' | pagoda plan -"
    )


def hub_cache(environment: Mapping[str, str]) -> Path:
    """Returns the folder in which Hugging Face's programs keep what they fetched."""
    home = environment.get("HF_HOME") or str(Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(environment.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()


def cached(hub: Path, name: str) -> Path | None:
    """Returns the config.json of a repository's main branch, as it was fetched last; None if it was not."""
    folder = hub / f"models--{name.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    file = folder / "snapshots" / commit / "config.json"
    return file if commit.isalnum() and file.is_file() else None


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > LARGEST_CONFIG:
            raise CliError(f"{file}: a config.json must be at most 1 MiB")
        return _config(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise CliError(f"{file}: {reason}; MODEL must be {ACCEPTED}, or hf://ORG/NAME") from error


def _config(text: str, name: str) -> dict[str, Any]:
    """An inspection's report holds the config.json."""
    if len(text) > LARGEST_CONFIG:
        raise CliError(f"{name}: a config.json must be at most 1 MiB")
    try:
        found = parse_json(text, name)
    except BadConfig as error:
        raise CliError(f"{error}; MODEL must be {ACCEPTED}, or hf://ORG/NAME") from None
    inner = found.get("config")
    return inner if isinstance(inner, dict) and "model_type" not in found else found
