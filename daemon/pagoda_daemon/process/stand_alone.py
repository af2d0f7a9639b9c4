"""`pagoda-daemon serve MODEL`: the flags of a person without a cluster → a DaemonConfig. Called by `settings`.

Flags have vLLM's names where they mean the same. A file of flags (`--config`) and `--set` reach the rest: `--set` every field of a
DaemonConfig by its dotted name. The command line wins over the file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pydantic
import yaml
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.names import PORT_DAEMON_HTTP
from pagoda_contracts.units import parse_quantity

from pagoda_daemon.core.errors import ConfigRejected, NotStarted
from pagoda_daemon.process.lora_flags import adapters_of, add_lora_flags

ENV_API_KEY: Final = "PAGODA_API_KEY"
_MAX_PORT: Final = 65535
_BLOCKS: Final = ("16", "32", "64")
_WHICH_BLOCKS: Final = f"must be {', '.join(_BLOCKS[:-1])} or {_BLOCKS[-1]}"
_SOURCE: Final = re.compile(r"(hf|s3|gs|oci)://.+|\w[\w.-]*/[\w.-]+")  # ./x is a path
_KEYS: Final = "api-keys"
# What people type who come from vLLM, and that has no effect here: said, not silently taken.
_REFUSED: Final = {
    "--tensor-parallel-size": "is not built yet",
    "--trust-remote-code": "is never done: code that comes with a model is not run",
}
_LISTS: Final = (
    ("--cors-origin", "ORIGIN", "origin of web pages that may read answers, such as https://chat.example.org; repeatable"),
    ("--allowed-host", "NAME", "host name under which clients without keys reach the daemon, * for any; repeatable"),
)


@dataclass(frozen=True)
class Flag:
    """One option of `serve`: where it goes in a DaemonConfig, and argparse's own words for it."""

    name: str
    field: str
    help: str
    kind: Any = str
    choices: tuple[str, ...] | None = None


def tokens(text: str) -> int:
    """4096, or 32k for 32,768."""
    found = re.fullmatch(r"(\d+)([kKmM]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be a number of tokens such as 4096 or 32k, got {text!r}")
    return int(found[1]) * {"": 1, "k": 2**10, "m": 2**20}[found[2].lower()]


def size(text: str) -> int:
    """Bytes, as Kubernetes writes them: 1073741824, 1Gi."""
    try:
        return int(parse_quantity(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number of bytes such as 4Gi, got {text!r}") from error


def port(text: str) -> int:
    """A TCP port; 0 lets the kernel choose."""
    if text.isdecimal() and int(text) <= _MAX_PORT:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a port from 0 to {_MAX_PORT}, got {text}")


def block(text: str) -> int:
    """Tokens of a KV block."""
    if text in _BLOCKS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{_WHICH_BLOCKS}, got {text!r}")


FLAGS: Final = (
    Flag("--host", "listen.host", "address to listen on (default: 127.0.0.1)"),
    Flag("--port", "listen.http", f"HTTP port, 0 for a free one (default: {PORT_DAEMON_HTTP})", port),
    Flag("--dtype", "engine.dtype", "numerics (default: bfloat16)", choices=("bfloat16", "float32")),
    Flag("--device", "engine.device", "where to compute (default: auto)", choices=("auto", "cpu", "cuda")),
    Flag("--max-model-len", "engine.maxModelLen", "longest context in tokens, 32k is 32,768 (default: the model's)", tokens),
    Flag("--max-num-seqs", "engine.maxConcurrency", "requests that decode together (default: 64)", int),
    Flag("--max-num-batched-tokens", "engine.tokenBudget", "tokens computed per step (default: 512, on a GPU 2048)", int),
    Flag("--block-size", "engine.blockSize", "tokens of a KV block: 16, 32 or 64 (default: 16)", block),
    Flag("--kv-cache-memory-bytes", "engine.kvBytes", "memory for KV blocks such as 4Gi (default: what is left)", size),
    Flag("--gpu-memory-utilization", "engine.kvMemoryFraction", "share of all memory for weights, steps and KV, on CPU too", float),
    Flag("--quantization", "engine.quantization", "type of the weights' matrices", choices=("int8", "fp8", "int4", "nvfp4")),
    Flag("--kv-cache-dtype", "engine.kvDtype", "type of keys and values", choices=("auto", "bfloat16", "float8", "int8")),
    Flag("--tool-call-parser", "engine.toolParser", "how the model writes tool calls (default: by its chat template)"),
    Flag("--reasoning-parser", "engine.reasoningParser", "how the model marks its reasoning, or none (default: by its chat template)"),
    Flag("--chat-template", "model.chatTemplate", "file with a Jinja template that replaces the model's"),
    Flag("--seed", "engine.seed", "makes the random seeds of requests the same after each start", int),
    Flag("--ssl-certfile", "listen.tls.certFile", "certificate in PEM with its chain; the HTTP port is encrypted then"),
    Flag("--ssl-keyfile", "listen.tls.keyFile", "private key in PEM (default: in the file of the certificate)"),
    Flag("--root-path", "listen.rootPath", "prefix such as /llm under which a proxy offers this replica"),
    Flag("--threads", "engine.threads", "compute threads (default: the cores that are granted)", int),
    Flag("--drain-timeout", "drainTimeout", "time that requests have to finish after Ctrl-C (default: 30s)"),
)


def add_flags(serve: argparse.ArgumentParser) -> None:
    """All options of `serve`. Those that are absent stay out of the namespace's values (None)."""
    serve.add_argument("model", help="a directory with config.json, tokenizer.json and *.safetensors, or org/name, hf://…, s3://…, oci://…")
    for flag in FLAGS:
        more: dict[str, Any] = {"choices": flag.choices} if flag.choices else {"type": flag.kind}
        serve.add_argument(flag.name, dest=flag.field, help=flag.help, **more)
    serve.add_argument("--served-model-name", nargs="+", metavar="NAME", help="names that clients put in `model` (default: the model's)")
    serve.add_argument("--name", action="append", help="one such name; repeatable")
    serve.add_argument("--api-key", action="append", metavar="KEY", help=f"key that clients must send; repeatable; or {ENV_API_KEY}")
    for name, metavar, help_text in _LISTS:
        serve.add_argument(name, action="append", default=[], metavar=metavar, help=help_text)
    add_lora_flags(serve)
    serve.add_argument("--revision", help="commit, tag or branch of a model that is fetched")
    serve.add_argument("--download-dir", type=Path, help="where fetched models are kept (default: ~/.cache/pagoda/models)")
    serve.add_argument("--enable-auto-tool-choice", action="store_true", help="accepted for vLLM's command lines; always on")
    serve.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, dest="engine.prefixCaching", help="on by default")
    serve.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="any field of a DaemonConfig (docs/daemon-config.md)"
    )
    serve.add_argument("--config", dest="flags_file", type=Path, help="YAML file of flags, without their dashes")
    for name in _REFUSED:
        serve.add_argument(name, action=_Refused, nargs="?", help=argparse.SUPPRESS)


class _Refused(argparse.Action):
    """Ends with a sentence that names the flag."""

    def __call__(self, parser: argparse.ArgumentParser, _space: object, _values: object, option: str | None = None) -> None:
        parser.error(f"{option} {_REFUSED[self.option_strings[0]]}; leave it out")


def with_file(argv: Sequence[str]) -> list[str]:
    """`argv` of `serve` behind the flags of its `--config` FILE, if it names one. ConfigRejected for a file that is none."""
    found = [at for at, word in enumerate(argv) if word == "--config" or word.startswith("--config=")]
    if argv[:1] != ["serve"] or not found:
        return list(argv)
    named = argv[found[0]].partition("=")[2] or next(iter(argv[found[0] + 1 :]), "")
    return ["serve", *_flags_of(Path(named)), *argv[1:]]


def _flags_of(path: Path) -> list[str]:
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise ConfigRejected(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigRejected(f"{path} is not YAML: {error}") from error
    if not isinstance(given, dict):
        raise ConfigRejected(f"{path} must be a mapping from flags to values")
    return [word for name, value in given.items() for word in _words(str(name), value)]


def _words(name: str, value: Any) -> list[str]:
    """A flag as on a command line: a list is its values, true is the flag alone, false is nothing."""
    if name == "model":
        return [str(value)]
    if isinstance(value, bool):
        return [f"--{name}"] if value else []
    values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
    repeated = name in ("set", "name", "api-key", *(one.removeprefix("--") for one, _, _ in _LISTS))
    return [word for one in values for word in (f"--{name}", one)] if repeated else [f"--{name}", *values]


def config_of(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> DaemonConfig:
    """ConfigRejected names what cannot be; nothing is left behind then."""
    folder = model_folder(arguments.model, arguments.revision, arguments.download_dir, environ)
    names = list(dict.fromkeys((*(arguments.served_model_name or ()), *(arguments.name or ())))) or [name_of(arguments.model)]
    tree: dict[str, Any] = {"model": {"path": str(folder), "servedNames": names}}
    _put(tree, "listen", {"host": "127.0.0.1", "http": PORT_DAEMON_HTTP, "grpc": 0, "probes": 0, "pingAfter": "15s"})
    for name, value in vars(arguments).items():
        if ("." in name or name == "drainTimeout") and value not in (None, "auto"):
            _put(tree, name, value)
    if arguments.cors_origin:
        _put(tree, "listen.corsOrigins", arguments.cors_origin)
    if arguments.allowed_host:
        _put(tree, "listen.allowedHosts", arguments.allowed_host)
    if (adapters := adapters_of(arguments)) is not None:
        tree["adapters"] = adapters
    for entry in arguments.set:
        _put(tree, *_assignment(entry))
    keys = _keys(arguments, environ)
    run_dir = Path(tempfile.mkdtemp(prefix="pagoda-"))
    _put(tree, "listen.runDir", str(run_dir))
    if keys:
        _put(tree, "auth.keysFile", str(_write_keys(run_dir / _KEYS, keys, arguments.admin_api_key)))
    if "auth" not in tree:  # any web page could reach it under a name of its own
        listen = tree["listen"]
        listen["allowedHosts"] = [*listen.get("allowedHosts", ()), str(listen.get("host"))]
    try:
        return checked(tree)
    except ConfigRejected:
        _remove(run_dir)
        raise


def _keys(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Sequence[str]:
    keys: list[str] = arguments.api_key or environ.get(ENV_API_KEY, "").split()
    if arguments.admin_api_key and not keys:
        raise ConfigRejected("--admin-api-key needs --api-key: without it every client may load adapters")
    return keys


def _put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for name in path:
        tree = tree.setdefault(name, {})
    tree[last] = value


def _assignment(entry: str) -> tuple[str, Any]:
    name, sign, value = entry.partition("=")
    if not sign or not re.fullmatch(r"[A-Za-z]+(\.[A-Za-z]+)*", name):
        raise ConfigRejected(f"--set {entry[:200]!r} must be FIELD=VALUE, such as engine.kvBytes=1073741824")
    try:
        return name, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigRejected(f"--set {name}: {value[:200]!r} is not YAML") from error


def checked(tree: Mapping[str, Any]) -> DaemonConfig:
    """ConfigRejected names the first field that is wrong or unknown."""
    try:
        config = DaemonConfig.model_validate(tree)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigRejected(f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {str(first['input'])[:200]!r}") from error
    if unknown := config.unknown_fields():
        raise ConfigRejected(f"{', '.join(unknown)}: not built yet, or no field of a DaemonConfig (docs/daemon-config.md)")
    if str(config.engine.block_size) not in _BLOCKS:
        raise ConfigRejected(f"engine.blockSize: {_WHICH_BLOCKS}, got {config.engine.block_size}")
    return config


def _write_keys(path: Path, keys: Sequence[str], admin: str | None) -> Path:
    """Only digests are written, and only this user reads them."""
    path.touch(mode=0o600, exist_ok=False)
    lines = [f"{_digest(key)} api-key-{at}\n" for at, key in enumerate(keys)]
    path.write_text("".join([*lines, f"{_digest(admin)} admin role=admin\n"] if admin else lines))
    return path


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _remove(run_dir: Path) -> None:
    (run_dir / _KEYS).unlink(missing_ok=True)
    run_dir.rmdir()


def name_of(model: str) -> str:
    """org/name as clients of vLLM write it; else the last part."""
    if "://" not in model and not Path(model).is_dir():
        return model
    return model.partition("://")[2].rstrip("/") if "://" in model else Path(model).resolve().name


def model_folder(given: str, revision: str | None = None, store: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """A directory as it is; what org/name or an address names is fetched first, into `store` or the cache of this user."""
    folder = Path(given)
    if folder.is_dir():
        return folder.resolve()
    if not _SOURCE.fullmatch(given):
        raise ConfigRejected(f"{given} is not a directory")
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagoda" / "models"
    return _fetched(given, revision, store or cache)


def _fetched(given: str, revision: str | None, store: Path) -> Path:
    """By `pagoda-fetch`: resumed, verified, kept. It shows its progress on stderr, and says itself what is wrong."""
    hub = "://" not in given
    uri = f"hf://{given}" if hub else given
    store.mkdir(parents=True, exist_ok=True)
    more = ["--revision", revision] if revision else []
    argv = [sys.executable, "-P", "-m", "pagoda_fetch", "fetch", uri, "--to", str(store), *more]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        path = f". There is no directory {given} here either" if hub else ""
        raise NotStarted(f"{uri} was not fetched; pagoda-fetch ended with {done.returncode}{path}")
    return Path(done.stdout.strip())
