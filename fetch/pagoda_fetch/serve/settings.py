"""Command line and environment, resolved once into a frozen `Settings`. The only reader of the environment.

`serve` is what a replica's pod runs, `fetch` and `inspect` are for people and for pods that run once.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pagoda_contracts.names import CLAIMS_MOUNT, CREDENTIALS_MOUNT, FETCHED_LINK, MODEL_MOUNT, POD_IDENTITY, PORT_FETCH, PORT_FETCH_PROBES
from pagoda_contracts.units import parse_duration, parse_quantity

from pagoda_fetch.core.address import check_digest, parse
from pagoda_fetch.core.credentials import IDENTITY_WORDS, WORDS
from pagoda_fetch.core.errors import ConfigRejected
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.download.job import Order
from pagoda_fetch.sources.choose import Surroundings

_TERMINATION_LOG: Final = "/dev/termination-log"
_HUB: Final = "https://huggingface.co"
_MAX_PORT: Final = 65535


@dataclass(frozen=True)
class Settings:
    """Everything a run needs. `order` is the service's own model; a sidecar without one only answers others."""

    command: str
    order: Order | None
    around: Surroundings
    root: Path
    link: Path | None = None
    port: int = PORT_FETCH
    probes: int = PORT_FETCH_PROBES
    pod: str = ""
    message_file: Path | None = field(default=None)

    @property
    def limits(self) -> Limits:
        """What a fetch may cost."""
        return self.around.limits


def termination_log(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The file for the last word: kubelet creates it, so an absent one is not read."""
    path = Path(environment.get("PAGODA_TERMINATION_LOG", _TERMINATION_LOG))
    return path if path.is_file() else None


def resolve(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Settings of a command line; exits with argparse's message on a malformed one, ConfigRejected on an impossible one."""
    given = _parser().parse_args(argv)
    order = None
    if given.uri is not None:
        order = Order(parse(given.uri, given.revision), check_digest(getattr(given, "digest", "")), given.credential)
    elif given.revision or getattr(given, "digest", ""):
        raise ConfigRejected("--revision and --digest say what to fetch of --model: name that too")
    return Settings(
        command=given.command,
        order=order,
        around=_surroundings(given, environment),
        root=getattr(given, "to", None) or Path(MODEL_MOUNT),
        link=getattr(given, "link", None),
        port=getattr(given, "port", PORT_FETCH),
        probes=getattr(given, "probes_port", PORT_FETCH_PROBES),
        pod=environment.get("PAGODA_POD_UID", ""),
        message_file=termination_log(environment),
    )


def _surroundings(given: argparse.Namespace, environment: Mapping[str, str]) -> Surroundings:
    hub = given.hub or environment.get("HF_ENDPOINT") or _HUB
    if not hub.startswith(("https://", "http://")):
        raise ConfigRejected(f"the hub must be https://… or http://…, got {hub!r}")
    plain = given.plain_registry or environment.get("PAGODA_PLAIN_REGISTRIES", "").split(",")
    words = {word: environment[word] for word in (*WORDS, *IDENTITY_WORDS) if environment.get(word)}
    return Surroundings(hub, given.credentials, given.claims, frozenset(filter(None, plain)), words, _limits(given))


def _limits(given: argparse.Namespace) -> Limits:
    limits = Limits(max_bytes=given.max_bytes, silence=given.silence, parallel=given.parallel, attempts=given.attempts)
    return replace(limits, reserve=given.reserve)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pagoda-fetch", description="Brings models and adapters to a replica, verified.")
    commands = parser.add_subparsers(dest="command", metavar="{fetch,inspect,serve}", required=True)
    fetch = commands.add_parser("fetch", help="fetch a model into a folder")
    fetch.add_argument(
        "uri",
        help="hf://org/name, s3://bucket/prefix, gs://bucket/prefix, az://account/container/prefix, oci://registry/repository, "
        "https://host/folder, pvc://claim/path",
    )
    fetch.add_argument("--to", type=Path, required=True, help="the store: the model is in DIR/sha256-…", metavar="DIR")
    fetch.add_argument("--link", type=Path, help="a link that points at the finished model")
    inspect = commands.add_parser("inspect", help="print the model's config and sizes as one JSON line")
    inspect.add_argument("uri", help="as for fetch")
    serve = commands.add_parser("serve", help="the sidecar: fetch the service's model, then answer the daemon")
    serve.add_argument("--model", dest="uri", help="the service's own model")
    serve.add_argument("--to", type=Path, default=Path(MODEL_MOUNT), help="the store (default: %(default)s)", metavar="DIR")
    serve.add_argument("--link", type=Path, default=Path(FETCHED_LINK), help="the link at the finished model (default: %(default)s)")
    serve.add_argument("--port", type=_port, default=PORT_FETCH, help="gRPC on loopback, 0 for a free one (default: %(default)s)")
    serve.add_argument("--probes-port", type=_port, default=PORT_FETCH_PROBES, help="probes (default: %(default)s)")
    for command in (fetch, serve):
        command.add_argument("--digest", default="", help="sha256:… that the whole must have")
    for command in (fetch, inspect, serve):
        _common(command)
    return parser


def _common(command: argparse.ArgumentParser) -> None:
    text, places = command.add_argument, {"credentials": CREDENTIALS_MOUNT, "claims": CLAIMS_MOUNT}
    text("--revision", default="", help="commit, tag or branch (hf), tag or digest (oci)")
    text("--credential", default="", help=f"name of a folder below --credentials; {POD_IDENTITY}: the cloud identity of the pod")
    for name, default in places.items():
        text(f"--{name}", type=Path, default=Path(default), help="where they are mounted (default: %(default)s)", metavar="DIR")
    text("--hub", help=f"endpoint of the hub (HF_ENDPOINT; default: {_HUB})")
    text(
        "--plain-registry",
        action="append",
        help="a registry spoken to without TLS; loopback always is (PAGODA_PLAIN_REGISTRIES, by commas)",
    )
    sizes: dict[str, Any] = {"type": _size}
    text("--max-bytes", default="4Ti", help="largest model taken (default: %(default)s)", **sizes)
    text("--reserve", default="64Mi", help="left free on the volume (default: %(default)s)", **sizes)
    text("--silence", type=_seconds, default="60s", help="a window without 64 KiB is a stall (default: %(default)s)")
    text("--parallel", type=_count, default=4, help="files at the same time (default: %(default)s)")
    text("--attempts", type=_count, default=6, help="tries in a row without progress (default: %(default)s)")


def _size(text: str) -> int:
    return int(_checked(parse_quantity, text))


def _seconds(text: str) -> float:
    return float(_checked(parse_duration, text))


def _checked(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= _MAX_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port from 0 to {_MAX_PORT}, got {text}")


def _count(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 64:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be from 1 to 64, got {text!r}")
