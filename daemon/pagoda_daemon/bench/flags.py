"""The command line of `pagoda-daemon bench serve`: flags of `vllm bench serve` that mean the same, parsed once into `Settings`.

Called by `command`. ConfigRejected or argparse's own message says what cannot be.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pagoda_daemon.bench.client import CHAT
from pagoda_daemon.bench.datasets import NAMES, Lengths
from pagoda_daemon.bench.statistics import GOODPUT_METRICS, METRICS, Wanted

BACKENDS: Final[Mapping[str, str]] = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
_SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")


@dataclass(frozen=True)
class Settings:
    """`given` are the flags; the rest is what they come to. `model` None: the first one that the server lists."""

    given: argparse.Namespace
    base_url: str
    endpoint: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    metadata: Mapping[str, str]
    wanted: Wanted
    lengths: Lengths

    @property
    def chat(self) -> bool:
        return self.endpoint.endswith(CHAT)


def parse(argv: Sequence[str], api_key: str = "") -> Settings:
    """Exits with argparse's message on a malformed command line."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.dataset_name != "random" and given.dataset_path is None:
        parser.error(f"--dataset-name {given.dataset_name} needs --dataset-path")
    key = {"authorization": f"Bearer {api_key}"} if api_key else {}
    percentiles = tuple(float(one) for one in given.metric_percentiles.split(","))
    return Settings(
        given,
        (given.base_url or f"http://{given.host}:{given.port}").rstrip("/").removesuffix("/v1"),
        given.endpoint or BACKENDS[given.backend],
        _body(given),
        {**key, **dict(given.header or ())},
        dict(given.metadata or ()),
        Wanted(tuple(given.percentile_metrics), percentiles, dict(given.goodput or ())),
        Lengths(given.random_input_len, given.random_output_len, given.random_range_ratio, given.random_prefix_len),
    )


def _body(given: argparse.Namespace) -> dict[str, Any]:
    """Greedy, if nothing else is said, and to the wished length of random prompts, as vLLM does."""
    said = {name: value for name in _SAMPLING if (value := getattr(given, name)) is not None}
    ends = {"ignore_eos": True} if given.ignore_eos or given.dataset_name == "random" else {}
    return {"temperature": 0.0, **ends, **said, **(given.extra_body or {})}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagoda-daemon bench", description="Sends load to an OpenAI endpoint and says how it was answered, as `vllm bench serve` does."
    )
    serve = parser.add_subparsers(dest="command", required=True).add_parser("serve", help="an endpoint that is served")
    _add_target(serve)
    _add_dataset(serve)
    _add_load(serve)
    _add_results(serve)
    for name in _SAMPLING:
        serve.add_argument(_flag(name), type=int if name == "top_k" else float, help="sampling parameter of each request")
    return parser


def _add_target(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--backend", choices=tuple(BACKENDS), default="openai", help="which endpoint is asked (default: %(default)s)")
    serve.add_argument("--base-url", help="address of the server; /v1 at its end is left out")
    serve.add_argument("--host", default="127.0.0.1", help="used without --base-url (default: %(default)s)")
    serve.add_argument("--port", type=_positive, default=8000, help="used without --base-url (default: %(default)s)")
    serve.add_argument("--endpoint", help="path (default: the backend's)")
    serve.add_argument("--model", help="name of the model, or its directory (default: the first one that the server lists)")
    serve.add_argument("--served-model-name", help="name in requests, if --model is not it")
    serve.add_argument("--tokenizer", help="model directory or tokenizer.json, for random and sharegpt (default: --model)")
    serve.add_argument("--header", nargs="*", type=_pair, metavar="KEY=VALUE", help="headers of each request; a key: OPENAI_API_KEY")
    serve.add_argument("--extra-body", type=_object, metavar="JSON", help="fields of each request")
    serve.add_argument(
        "--ready-check-timeout-sec", type=float, default=600.0, help="wait for the endpoint; 0 does not (default: %(default)g)"
    )


def _add_dataset(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--dataset-name", choices=NAMES, default="random", help="what is asked (default: %(default)s)")
    serve.add_argument("--dataset-path", type=Path, help="sharegpt: JSON of conversations; custom: lines of JSON with a prompt")
    serve.add_argument("--num-prompts", type=_positive, default=1000, help="requests (default: %(default)s)")
    serve.add_argument("--random-input-len", type=_positive, default=1024, help="tokens of a prompt (default: %(default)s)")
    serve.add_argument("--random-output-len", type=_positive, default=128, help="tokens of an answer (default: %(default)s)")
    serve.add_argument("--random-range-ratio", type=_share, default=0.0, help="both vary by this share (default: %(default)g)")
    serve.add_argument("--random-prefix-len", type=_count, default=0, help="tokens that all prompts begin with (default: %(default)s)")
    serve.add_argument("--sharegpt-output-len", type=_positive, help="tokens of an answer (default: as in the conversation)")
    serve.add_argument("--custom-output-len", type=_positive, help="tokens of an answer (default: output_tokens of the line, or 256)")
    serve.add_argument("--ignore-eos", action="store_true", help="each answer has its full length; always so for random prompts")
    serve.add_argument("--seed", type=_count, default=0, help="of prompts and times (default: %(default)s)")


def _add_load(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--request-rate", type=_rate, default=math.inf, help="requests per second; inf sends all at once (default: inf)")
    serve.add_argument("--burstiness", type=_rate, default=1.0, help="1 is a Poisson process, less is burstier (default: %(default)g)")
    serve.add_argument("--max-concurrency", type=_positive, help="requests under way at most; others wait for a place")
    serve.add_argument("--num-warmups", type=_count, default=0, help="requests before the clock runs (default: %(default)s)")


def _add_results(serve: argparse.ArgumentParser) -> None:
    serve.add_argument("--percentile-metrics", type=_metrics, default="ttft,tpot,itl", help="of ttft,tpot,itl,e2el (default: %(default)s)")
    serve.add_argument("--metric-percentiles", type=_percentiles, default="99", help="separated by commas (default: %(default)s)")
    serve.add_argument("--goodput", nargs="+", type=_limit, metavar="METRIC:MS", help="what a good request keeps; ttft, tpot or e2el")
    serve.add_argument("--save-result", action="store_true", help="write a JSON file")
    serve.add_argument("--save-detailed", action="store_true", help="with texts, errors and times of each request in it")
    serve.add_argument("--result-dir", type=Path, default=Path(), help="folder of that file (default: this one)")
    serve.add_argument("--result-filename", help="name of that file (default: made of label, rate, model and time)")
    serve.add_argument("--label", help="label of the result (default: the backend)")
    serve.add_argument("--metadata", nargs="*", type=_pair, metavar="KEY=VALUE", help="further entries of that file")
    serve.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _positive(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")


def _count(text: str) -> int:
    if text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, got {text!r}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a number, got {text!r}") from error


def _rate(text: str) -> float:
    if (value := _number(text)) > 0:
        return value
    raise argparse.ArgumentTypeError(f"must be above 0, got {text}")


def _share(text: str) -> float:
    if 0 <= (value := _number(text)) < 1:
        return value
    raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, got {text}")


def _metrics(text: str) -> list[str]:
    names = text.split(",")
    if wrong := [name for name in names if name not in METRICS]:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(METRICS)}, got {wrong[0]!r}")
    return names


def _percentiles(text: str) -> str:
    if all(0 <= _number(one) <= 100 for one in text.split(",")):
        return text
    raise argparse.ArgumentTypeError(f"must be numbers between 0 and 100, got {text!r}")


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition(":")
    if name in GOODPUT_METRICS and _number(value) >= 0:
        return name, _number(value)
    raise argparse.ArgumentTypeError(f"must be METRIC:MS with a metric of {', '.join(GOODPUT_METRICS)}, got {text!r}")


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if sign:
        return name.strip(), value.strip()
    raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text!r}")


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON: {error}") from error
    if isinstance(found, dict):
        return found
    raise argparse.ArgumentTypeError(f"must be a JSON object, got {text!r}")
