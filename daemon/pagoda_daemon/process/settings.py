"""Command line and environment, resolved once into a frozen `Settings`. The only reader of the environment.

`--config FILE` is how a pod starts it (the operator wrote the file); `serve MODEL` makes the same file for a person (`stand_alone`).
`--config FILE --version` is how a rollout tries an image before a replica goes for it: the version, and whether this one can
read the file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

import pydantic
from pagoda_contracts.launch import DaemonConfig, TracingConfig
from pagoda_contracts.names import DAEMON_CONFIG_DIR, DAEMON_CONFIG_KEY, ENV_POD_UID
from pagoda_contracts.units import parse_duration

from pagoda_daemon.core.errors import ConfigRejected, NotStarted
from pagoda_daemon.process import stand_alone

VERSION: Final = version("pagoda")
SIMULATE_FRONTS: Final = "simulate-fronts"  # a command of its own: simulated/replicas/fronts.py
_ELSEWHERE: Final = {  # `__main__` runs them before it comes here: listed for --help alone
    "bench": "send load to an OpenAI endpoint and say how it answered (bench serve --help)",
    "simulate": "run a trace through the scheduler on a simulated device, without a model (simulate --help)",
}
_COLLECTOR: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DEFAULT: Final = Path(DAEMON_CONFIG_DIR) / DAEMON_CONFIG_KEY
_MAX_REASON: Final = 2048  # bytes; the kubelet keeps 4096 of a termination message
_TERMINATION_LOG: Final = "/dev/termination-log"  # where kubelet mounts a pod's terminationMessagePath by default


@dataclass(frozen=True)
class Settings:
    """Everything the front needs to start. `config_path` is what the engine reads; `human`: started by a person, not in a pod; `pod_uid`:
    our own pod's, where it says so; `tracing`: where spans go, by the configuration or by OpenTelemetry's own variables."""

    config: DaemonConfig
    config_path: Path
    drain_timeout_s: float
    human: bool = False
    version: str = VERSION
    pod_uid: str = ""
    tracing: TracingConfig | None = None

    @property
    def ping_after_s(self) -> float | None:
        after = self.config.listen.ping_after
        return None if after is None else parse_duration(after)


def leave_reason(text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Writes why the process ends, in one line, to where the operator reads it. The kubelet creates the file, so that nobody reads it if it
    is absent."""
    file = Path(environ.get("PAGODA_TERMINATION_LOG", _TERMINATION_LOG))
    if file.is_file():
        with suppress(OSError):  # a full disk: the exit code still says whether a restart may help
            file.write_bytes(" ".join(text.split()).encode()[:_MAX_REASON] + b"\n")


def resolve(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings of a command line; exits with argparse's message on a malformed one, ConfigRejected on an impossible one."""
    parser = _parser()
    arguments = parser.parse_args(stand_alone.with_file(argv))
    if arguments.command in _ELSEWHERE:
        parser.error(f"{arguments.command} must be the first word")
    if arguments.version:
        _print_version(arguments.config)
    if arguments.command == "serve":
        config = stand_alone.config_of(arguments, environ)
        path = Path(config.listen.run_dir) / DAEMON_CONFIG_KEY
        _write(path, config.model_dump_json(by_alias=True, exclude_none=True, exclude_unset=True))
    else:
        path = arguments.config or _DEFAULT
        config = _read(path)
    human, uid = arguments.command == "serve", environ.get(ENV_POD_UID, "")
    return Settings(config, path, parse_duration(config.drain_timeout), human=human, pod_uid=uid, tracing=_tracing(config, environ))


def _tracing(config: DaemonConfig, environ: Mapping[str, str]) -> TracingConfig | None:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if config.tracing is None and any(environ.get(name) for name in _COLLECTOR):
        return TracingConfig()
    return config.tracing


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagoda-daemon",
        description="Serves one large language model over the OpenAI API.",
        epilog="In a pod no command is given: what to serve is in the file of --config.",
    )
    parser.add_argument("--version", action="store_true", help="print the version, after reading the DaemonConfig where --config is given")
    parser.add_argument("--config", type=Path, help=f"DaemonConfig as JSON (default: {_DEFAULT})")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model without Kubernetes")
    stand_alone.add_flags(serve)
    for name, help_text in _ELSEWHERE.items():
        commands.add_parser(name, help=help_text, add_help=False)
    return parser


def _print_version(config: Path | None) -> NoReturn:
    """ConfigRejected where a configuration is named that this version cannot read."""
    if config is not None:
        _read(config)
    sys.stdout.write(f"pagoda-daemon {VERSION}\n")
    sys.exit(0)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        shutil.rmtree(path.parent, ignore_errors=True)
        raise NotStarted(f"{path}: {error.strerror}") from error


def _read(path: Path) -> DaemonConfig:
    try:
        return DaemonConfig.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigRejected(f"{path}: {error.strerror}; outside of a pod: pagoda-daemon serve MODEL") from error
    except OSError as error:
        raise ConfigRejected(f"{path}: {error.strerror}") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigRejected(f"{path}: {where}: {first['msg']}") from error
