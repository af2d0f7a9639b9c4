"""`inspect`: what a source holds, without fetching it: the sizes, and the fields of config.json that sizing reads. One JSON line.

It must fit a container's termination message (4 KiB): a pod that runs this once is how the operator learns a model's size.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pagoda_fetch.core.errors import Refused
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Listing
from pagoda_fetch.download.job import Order, read_small, resolve
from pagoda_fetch.download.peeking import peek
from pagoda_fetch.sources.base import Source
from pagoda_fetch.sources.choose import Surroundings, source

LIMIT: Final = 4000
_MAX_CONFIG: Final = 1024 * 1024
_MAX_DEPTH: Final = 4
# One entry per layer at most; longer lists are labels, module names or rotary factors.
_MAX_LIST: Final = 160
_MAX_TEXT: Final = 100
# What no arithmetic reads and may be long.
_UNREAD: Final = frozenset(
    (
        *("id2label", "label2id", "task_specific_params", "auto_map", "transformers_version", "_name_or_path", "long_factor"),
        *("short_factor", "modules_to_not_convert", "ignored_layers", "ignore", "config_groups", "prefix", "bad_words_ids"),
    )
)
# What counts only by being there: code that comes with a model is never run.
_MARKED: Final = frozenset(("auto_map",))
_SCALARS: Final = (str, int, float, bool)


async def inspect(order: Order, around: Surroundings) -> dict[str, Any]:
    """What is there; raises FetchError."""
    origin = source(order.address, order.credential, around)
    try:
        listing = await resolve(origin, around.limits)
        return _summary(listing, await _config(origin, listing, around.limits))
    finally:
        await origin.close()


async def _config(origin: Source, listing: Listing, limits: Limits) -> dict[str, Any]:
    if listing.layered:
        return _object(*await peek(origin, listing, _MAX_CONFIG, limits.max_bytes))
    file = next((file for file in listing.files if file.name in ("config.json", "adapter_config.json")), None)
    if file is None:
        raise Refused("the source has no config.json")
    return _object(file.name, await read_small(origin, file, _MAX_CONFIG))


def _object(name: str, body: bytes) -> dict[str, Any]:
    try:
        config = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(f"{name} is not JSON") from None
    if not isinstance(config, dict):
        raise Refused(f"{name} is not a JSON object")
    return config


def _summary(listing: Listing, config: dict[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {"config": compact(config), "bytes": listing.unpacked}
    summary |= {"layers": len(listing.files)} if listing.layered else {"weightBytes": listing.weight_bytes, "files": len(listing.files)}
    summary |= {"compressed": True} if listing.compressed else {}
    summary |= {"revision": listing.revision} if listing.revision else {}
    summary |= {"digest": listing.digest} if listing.digest else {}
    if len(line(summary).encode()) > LIMIT:
        raise Refused(
            f"config.json is {len(line(summary['config']))} characters long even without what sizing does not read; at most {LIMIT}"
        )
    return summary


def line(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def compact(config: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """The config without what is long and not read."""
    marked = {key: True for key in _MARKED if not depth and config.get(key) is not None}
    return marked | {key: short for key, value in config.items() if key not in _UNREAD and (short := _short(value, depth)) is not None}


def _short(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return compact(value, depth + 1) if depth < _MAX_DEPTH else None
    if isinstance(value, list):
        fits = len(value) <= _MAX_LIST and all(isinstance(item, _SCALARS) for item in value)
        return value if fits else None
    if isinstance(value, str):
        return value if len(value) <= _MAX_TEXT else None
    return value
