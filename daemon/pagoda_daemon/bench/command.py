"""`pagoda-daemon bench serve`: flags → requests → load → table and JSON. Called by `__main__`; needs no model, no torch and no device."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np
from rich.console import Console
from rich.progress import Progress

from pagoda_daemon.bench import datasets, load
from pagoda_daemon.bench.arrivals import arrivals
from pagoda_daemon.bench.client import Target
from pagoda_daemon.bench.datasets import Sample
from pagoda_daemon.bench.flags import Settings, parse
from pagoda_daemon.bench.load import Load, Run
from pagoda_daemon.bench.statistics import figures, summary
from pagoda_daemon.bench.table import table
from pagoda_daemon.core.errors import ConfigRejected, NotStarted

_LATE_S: Final = 0.05  # by which a client that is itself too slow shows


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Exits with 1 if no request was answered."""
    settings = parse(argv, environ.get("OPENAI_API_KEY", ""))
    try:
        result = asyncio.run(bench(settings))
    except (ConfigRejected, NotStarted, OSError) as error:
        sys.exit(f"pagoda-daemon bench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if not result["completed"]:
        sys.exit("pagoda-daemon bench: no request was answered")


async def bench(settings: Settings) -> dict[str, Any]:
    """The whole run; the result as it is written."""
    given = settings.given
    async with load.session() as opened:
        name = given.served_model_name or given.model or await _first_model(opened, settings)
        target = Target(settings.base_url + settings.endpoint, name, settings.body, settings.headers)
        luck = np.random.default_rng(given.seed)
        samples = await asyncio.to_thread(_samples, settings, luck)
        if given.ready_check_timeout_sec > 0:
            await load.wait_ready(opened, target, samples[0], given.ready_check_timeout_sec)
        warm = [samples[0]] * given.num_warmups
        await load.run(opened, target, Load(warm, [0.0] * len(warm), given.max_concurrency), lambda: None)
        times = arrivals(len(samples), given.request_rate, given.burstiness, luck)
        run = await _measured(opened, target, Load(samples, times, given.max_concurrency), hidden=given.disable_tqdm)
    return _report(settings, name, run)


async def _measured(opened: aiohttp.ClientSession, target: Target, wanted: Load, *, hidden: bool) -> Run:
    console = Console(stderr=True)
    with Progress(console=console, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task("requests", total=len(wanted.samples))
        return await load.run(opened, target, wanted, lambda: progress.advance(task))


def _report(settings: Settings, name: str, run: Run) -> dict[str, Any]:
    """To the terminal, and to a file where that is wanted."""
    given, wanted = settings.given, settings.wanted
    found = figures(run.outcomes, run.duration, wanted)
    sys.stdout.write(table(found, given.request_rate, given.max_concurrency, wanted.percentiles) + "\n")
    errors = [one.error for one in run.outcomes if one.error]
    if errors:
        sys.stderr.write(f"{len(errors)} requests failed; the first one: {errors[0]}\n")
    if run.latest > _LATE_S:
        sys.stderr.write(f"This client was too slow: a request was sent {run.latest * 1000:.0f} ms after its time. Use a lower rate.\n")
    result = {**_head(settings, name), **(found if given.save_detailed else summary(found))}
    if given.save_result or given.save_detailed:
        path = given.result_dir / (given.result_filename or _file_name(settings, result))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result))
        sys.stdout.write(f"Written: {path}\n")
    return result


def _head(settings: Settings, name: str) -> dict[str, Any]:
    """What was asked for, by vLLM's keys."""
    given = settings.given
    return {
        "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": given.backend,
        "backend": given.backend,
        "label": given.label,
        "model_id": name,
        "tokenizer_id": given.tokenizer or given.model,
        "num_prompts": given.num_prompts,
        **settings.metadata,
        "request_rate": given.request_rate if math.isfinite(given.request_rate) else "inf",
        "burstiness": given.burstiness,
        "max_concurrency": given.max_concurrency,
    }


def _file_name(settings: Settings, result: Mapping[str, Any]) -> str:
    given = settings.given
    places = "" if given.max_concurrency is None else f"-concurrency{given.max_concurrency}"
    base = str(result["model_id"]).rstrip("/").split("/")[-1]
    return f"{given.label or given.backend}-{given.request_rate}qps{places}-{base}-{result['date']}.json"


def _samples(settings: Settings, luck: np.random.Generator) -> list[Sample]:
    given = settings.given
    if given.dataset_name == "custom":
        return datasets.from_lines(given.dataset_path, given.num_prompts, given.custom_output_len)
    place = given.tokenizer or given.model
    if place is None:
        raise ConfigRejected(f"--tokenizer is needed for --dataset-name {given.dataset_name}: a model's directory or its tokenizer.json")
    tokenizer = datasets.read_tokenizer(place)
    if given.dataset_name == "random":
        return datasets.drawn(given.num_prompts, settings.lengths, tokenizer, luck, as_text=settings.chat)
    return datasets.from_sharegpt(Path(given.dataset_path), given.num_prompts, given.sharegpt_output_len, tokenizer, luck)


async def _first_model(opened: aiohttp.ClientSession, settings: Settings) -> str:
    url = f"{settings.base_url}/v1/models"
    try:
        async with opened.get(url, headers=settings.headers) as answer:
            found = await answer.json(content_type=None)
            return str(found["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, IndexError, TypeError) as error:
        raise NotStarted(f"{url} lists no model ({type(error).__name__}: {error}); give --model") from error
