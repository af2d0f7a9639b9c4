"""Command line and environment, resolved once into a frozen `Settings`. The only reader of the environment.

`--config FILE` is how a pod starts it (the operator wrote the file); `serve MODEL_DIR` makes the same file for a person. `--config FILE
--version` is how a rollout tries an image before a replica goes for it: the version, and on the way whether this one can read the file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

import pydantic
from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig
from pagoda_contracts.names import DAEMON_CONFIG_DIR, DAEMON_CONFIG_KEY, ENV_POD_UID, PORT_DAEMON_HTTP
from pagoda_contracts.units import parse_duration

from pagoda_daemon.nouns.errors import ConfigRejected, NotStarted

VERSION: Final = version("pagoda")
SIMULATE_FRONTS: Final = "simulate-fronts"  # a door of its own: simulated/fleet/fronts.py
_MAX_PORT: Final = 65535
_DEFAULT: Final = Path(DAEMON_CONFIG_DIR) / DAEMON_CONFIG_KEY
_TERMINATION_LOG: Final = "/dev/termination-log"  # where kubelet mounts a pod's terminationMessagePath by default


@dataclass(frozen=True)
class Settings:
    """Everything the front needs to start. `config_path` is what the engine reads; `human`: started by a person, not in a pod; `pod_uid`:
    our own pod's, where it says so."""

    config: DaemonConfig
    config_path: Path
    drain_timeout_s: float
    human: bool = False
    version: str = VERSION
    pod_uid: str = ""

    @property
    def ping_after_s(self) -> float | None:
        after = self.config.listen.ping_after
        return None if after is None else parse_duration(after)


def termination_log(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The file for the reason of a permanent fault: kubelet creates it, so where it is absent nobody will read it."""
    path = Path(environ.get("PAGODA_TERMINATION_LOG", _TERMINATION_LOG))
    return path if path.is_file() else None


def resolve(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings of a command line; exits with argparse's message on a malformed one, ConfigRejected on an impossible one."""
    arguments = _parser().parse_args(argv)
    if arguments.version:
        _tell_version(arguments.config)
    if arguments.command == "serve":
        config = _stand_alone(arguments)
        path = Path(config.listen.run_dir) / DAEMON_CONFIG_KEY
        _write(path, config.model_dump_json(by_alias=True, exclude_none=True))
    else:
        path = arguments.config or _DEFAULT
        config = _read(path)
    human, uid = arguments.command == "serve", environ.get(ENV_POD_UID, "")
    return Settings(config, path, parse_duration(config.drain_timeout), human=human, pod_uid=uid)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagoda-daemon",
        description="Serves one large language model over the OpenAI API.",
        epilog="`pagoda-daemon simulate --help`: a trace through the scheduler on a simulated device, without a model.",
    )
    parser.add_argument("--version", action="store_true", help="tell the version, after reading the DaemonConfig where --config is given")
    parser.add_argument("--config", type=Path, help=f"DaemonConfig as JSON (default: {_DEFAULT})")
    commands = parser.add_subparsers(dest="command", metavar="{serve,simulate-fronts}")
    commands.add_parser(SIMULATE_FRONTS, help="play many replicas in one process, for a cluster whose nodes only pretend", add_help=False)
    serve = commands.add_parser("serve", help="serve a model directory without Kubernetes")
    serve.add_argument("model", type=Path, help="directory with config.json, tokenizer.json and *.safetensors")
    serve.add_argument("--name", help="name that clients put in `model` (default: the directory's)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=_port, default=PORT_DAEMON_HTTP, help="HTTP port, 0 for a free one (default: %(default)s)")
    serve.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16", help="numerics (default: %(default)s)")
    return parser


def _tell_version(config: Path | None) -> NoReturn:
    """ConfigRejected where a configuration is named that this version cannot read."""
    if config is not None:
        _read(config)
    sys.stdout.write(f"pagoda-daemon {VERSION}\n")
    sys.exit(0)


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= _MAX_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port from 0 to {_MAX_PORT}, got {text}")


def _stand_alone(arguments: argparse.Namespace) -> DaemonConfig:
    model: Path = arguments.model.resolve()
    if not model.is_dir():
        raise ConfigRejected(f"{arguments.model} is not a directory")
    run_dir = tempfile.mkdtemp(prefix="pagoda-")
    return DaemonConfig(
        model=ModelConfig(path=str(model), served_names=(arguments.name or model.name,)),
        engine=EngineConfig(dtype=arguments.dtype),
        listen=Listen(host=arguments.host, http=arguments.port, grpc=0, probes=0, run_dir=run_dir, ping_after="15s"),
    )


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
        raise ConfigRejected(f"{path}: {error.strerror}; outside of a pod: pagoda-daemon serve MODEL_DIR") from error
    except OSError as error:
        raise ConfigRejected(f"{path}: {error.strerror}") from error
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigRejected(f"{path}: {where}: {first['msg']}") from error
