"""Outside: the APIs outside of the cluster to which requests may overflow, and what a request is to them. Called by proxy/overflow.py.

Only the installation's values name such an API: an InferenceService names one of these targets, never an address.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from pagoda_contracts.usage import Used

from pagoda_gateway.limits.bounds import Bounds

_CHAT, _COMPLETIONS, _RESPONSES, _EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
_PATHS: Final = frozenset({_CHAT, _COMPLETIONS, _RESPONSES, _EMBEDDINGS})
# To write a larger body anew would hold up other requests.
_MOST_BYTES: Final = 2 << 20
_LIMITS: Final = {_CHAT: ("max_completion_tokens", "max_tokens"), _COMPLETIONS: ("max_tokens",), _RESPONSES: ("max_output_tokens",)}
_COUNT: Final = re.compile(rb'"(prompt_tokens|completion_tokens|cached_tokens|input_tokens|output_tokens)"\s*:\s*(\d{1,15})(?!\d)')
_USAGE_ONLY: Final = re.compile(rb'"choices"\s*:\s*\[\s*\]')
_TAIL: Final = 1 << 16


class Target(NamedTuple):
    """An OpenAI-compatible API. `url` ends before the paths' `/chat/completions`; `model` is asked for if a service names none."""

    name: str
    url: str
    model: str
    key: Path
    tls: ssl.SSLContext

    def authorization(self) -> str:
        """Returns the header's value. Kubelet renews the file, so it may be wrong later: then ValueError, or OSError, says why."""
        key = self.key.read_text().strip()
        if not (key and key.isascii() and key.isprintable()):
            raise ValueError(f"target {self.name!r}: {self.key} must have the API key: one line of printable ASCII, and nothing else")
        return f"Bearer {key}"


class _Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    key: str
    model: str = ""
    ca: str | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    targets: dict[str, _Target] = {}


def read_targets(file: Path) -> dict[str, Target]:
    """Returns the targets by name. ValueError names what is wrong, OSError a file that cannot be read."""
    try:
        read = msgspec.json.decode(file.read_bytes(), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: {error}") from error
    return {name: _target(name, one) for name, one in read.targets.items()}


def _target(name: str, one: _Target) -> Target:
    if not re.fullmatch(r"https://[^/@?#\s]+(/[^@?#\s]*)?", one.url):
        raise ValueError(f"target {name!r}: url must be https://HOST[:PORT][/PATH], got {one.url!r}")
    target = Target(name, one.url.rstrip("/"), one.model, Path(one.key), ssl.create_default_context(cafile=one.ca))
    target.authorization()  # it is read anew for each request
    return target


def fits(path: str, body: bytes) -> bool:
    """Whether such a request may go outside."""
    return path in _PATHS and len(body) <= _MOST_BYTES


def address(target: Target, path: str) -> str:
    """Returns the URL of a path that `fits`."""
    return f"{target.url}{path.removeprefix('/v1')}"


class Letter(NamedTuple):
    """A request as the outside gets it. `hides_usage`: its client did not ask for the last event, which has the usage."""

    body: bytes
    hides_usage: bool = False


def letter(path: str, body: bytes, model: str, bounds: Bounds) -> Letter:
    """Returns the client's body with the target's model. A stream is asked for its usage, and an answer is bounded as its quota says.
    ValueError or RecursionError if the body cannot be written anew: routing read a few of its fields only."""
    document: dict[str, Any] = msgspec.json.decode(body)
    document["model"] = model
    limits = _LIMITS.get(path, ())
    if bounds.default is not None and limits and all(document.get(name) is None for name in limits):
        document[limits[0]] = bounds.default
    hides = document.get("stream") is True and path in (_CHAT, _COMPLETIONS)
    if hides:
        options = document.get("stream_options")
        options = options if isinstance(options, dict) else {}
        hides = options.get("include_usage") is not True
        document["stream_options"] = options | {"include_usage": True}
    return Letter(msgspec.json.encode(document), hides)


class Meter:
    """Reads the usage that an answer reports. A quote inside a text is escaped, so no text can look like one."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def feed(self, data: bytes) -> None:
        """Takes whole events or a whole answer."""
        if b"_tokens" in data:
            self._counts.update((name.decode(), int(count)) for name, count in _COUNT.findall(data[-_TAIL:]))

    @property
    def used(self) -> Used | None:
        """What the answer said, None if it said nothing."""
        found: Mapping[str, int] = self._counts
        prompt, answer = (
            found.get("prompt_tokens", found.get("input_tokens")),
            found.get("completion_tokens", found.get("output_tokens", 0)),
        )
        return None if prompt is None else Used(prompt, min(prompt, found.get("cached_tokens", 0)), answer)


def is_usage(event: bytes) -> bool:
    """Whether an event has a usage and no choice."""
    return b'"usage"' in event and _USAGE_ONLY.search(event) is not None
