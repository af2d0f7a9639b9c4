"""`pagoda-replay TRACE.jsonl`: replicas, queue, misses and GPU hours of a trace under our policy and under an HPA.

A trace is JSON lines, recorded or generated from a seed. Called by `__main__`. Reads and writes files and standard output, nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, TextIO

from pagoda_contracts.resources.scaling import ScalingSpec
from pagoda_operator.api.state import explain
from pagoda_operator.decide.scale.bounds import refused
from pagoda_operator.decide.scale.learned import DAY_S
from pydantic import ValidationError

from pagoda_replay.policies import Calendar, hpa, pagoda, plain
from pagoda_replay.simulation import Arrival, Bounds, Outcome, Replica, replay

_LINES: Final = 24
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0

_PROMPT_TOKENS: Final = (6.0, 0.8)  # of a log-normal: a median of 403 tokens, 5 % above 1,500
_ANSWER_TOKENS: Final = (5.3, 0.6)  # a median of 200, 5 % above 540
_MOST_TOKENS: Final = 8192


class TraceRefused(Exception):
    """A trace that cannot be replayed; names the line and what is accepted."""


def main(argv: Sequence[str], out: TextIO = sys.stdout) -> int:
    """Returns the exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.generate:
        with suppress(BrokenPipeError):  # `| head` ends early
            out.writelines(f"{line}\n" for line in write(generate(SHAPES[arguments.generate])))
            out.flush()
        return 0
    try:
        found = _replayed(arguments)
    except (OSError, TraceRefused) as error:
        sys.stderr.write(f"pagoda-replay: {arguments.trace}: {error}\n")
        return 2
    if arguments.json:
        summaries = ({name: value for name, value in asdict(outcome).items() if name != "course"} for outcome in found)
        out.writelines(json.dumps(summary) + "\n" for summary in summaries)
    else:
        out.write(_table(found))
    return 0


def _replayed(arguments: argparse.Namespace) -> list[Outcome]:
    """Replays our policy, then an HPA, within the same bounds; schedules may widen ours. An HPA at 0 is off, so it begins at 1."""
    arrivals, kind = _load(arguments.trace), Replica(rows=arguments.rows, start_s=arguments.start_seconds)
    bounds = Bounds(arguments.min, arguments.max, arguments.ttft_seconds)
    spec = _spec(arguments.scaling) if arguments.scaling else plain(bounds)
    calendar = Calendar(arguments.at.timestamp() if arguments.at else 0.0, arguments.day_seconds)
    most = spec.max or bounds.most
    widest = max([most, *(schedule.max or 0 for schedule in spec.schedules)])
    ours, theirs = Bounds(spec.min, widest, bounds.ttft_s), Bounds(max(1, spec.min), most, bounds.ttft_s)
    return [
        replay(arrivals, pagoda(kind, ours, spec, calendar), kind, ours),
        replay(arrivals, hpa(kind, theirs), kind, theirs),
    ]


def _spec(file: Path) -> ScalingSpec:
    """Reads a spec.scaling in JSON."""
    try:
        spec = ScalingSpec.model_validate_json(file.read_text(encoding="utf-8"))
    except ValidationError as error:
        raise TraceRefused(f"{file}: {explain(error)}") from error
    if why := refused(spec):
        raise TraceRefused(f"{file}: {why}")
    if spec.mode != "Auto":
        raise TraceRefused(f"{file}: mode {spec.mode}; it must be Auto")
    return spec


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pagoda-replay", description="What scaling would have done with recorded demand.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("trace", nargs="?", type=Path, help="JSON lines with at (seconds), prompt and answer (tokens)")
    what.add_argument("--generate", choices=sorted(SHAPES), help="write such a trace instead")
    kind = Replica()
    parser.add_argument("--rows", type=int, default=kind.rows, help="requests that a replica runs at a time")
    parser.add_argument("--start-seconds", type=float, default=kind.start_s, help="from a replica's order until it serves")
    parser.add_argument("--min", type=int, default=1, help="fewest replicas")
    parser.add_argument("--max", type=int, default=32, help="most replicas")
    parser.add_argument("--ttft-seconds", type=float, default=2.0, help="a later first token is a miss")
    parser.add_argument("--scaling", type=Path, metavar="FILE", help="a spec.scaling in JSON instead of --min and --max")
    parser.add_argument(
        "--at", type=datetime.fromisoformat, metavar="TIME", help="when the trace began, for schedules: 2026-11-23T00:00:00+01:00"
    )
    parser.add_argument(
        "--day-seconds", type=float, default=DAY_S, help="length of a day in the trace, for prediction (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per policy, without the course")
    return parser


def _load(trace: Path) -> list[Arrival]:
    with trace.open(encoding="utf-8") as lines:
        arrivals = list(read(lines))
    if not arrivals:
        raise TraceRefused("no line has a request")
    return arrivals


def _table(found: Sequence[Outcome]) -> str:
    lines = [f"{'policy':8} {'requests':>9} {'misses':>8} {'too long':>9} {'GPU hours':>10} {'longest wait':>13} {'changes':>8}"]
    lines += [
        f"{o.policy:8} {o.requests:9} {o.missed:8} {o.too_long:9} {o.gpu_hours:10.2f} {o.longest_wait_s:11.1f} s {o.changes:8}"
        for o in found
    ]
    for outcome in found:
        lines += ["", f"{outcome.policy}: at, replicas wanted/ready, running, waiting"]
        every = max(1, len(outcome.course) // _LINES)
        lines += [f"{s.at:8.0f} s {s.wanted:5}/{s.ready:<5} {s.running:7} {s.waiting:7}" for s in outcome.course[::every]]
    return "\n".join(lines) + "\n"


# Traces


@dataclass(frozen=True, slots=True)
class Shape:
    """Demand over time: requests per second at each moment, and how long a new replica takes to serve. Generators and seeds are older than
    the policies that they judge, and are not changed for one."""

    rate: Callable[[float], float]
    peak: float
    seconds: float
    seed: int
    start_s: float = 90.0


def _diurnal(t: float) -> float:
    """Four days of four hours each, as a day has: 2 requests per second by night, 14 at noon."""
    return 8.0 - 6.0 * math.cos(2 * math.pi * t / (4 * _HOUR))


def _burst(t: float) -> float:
    """4 per second, and every 20 minutes 16 for two minutes."""
    return 16.0 if t % (20 * _MINUTE) >= 18 * _MINUTE else 4.0


def _ramp(t: float) -> float:
    """From 1 to 20 per second in two hours, and back in one."""
    return 1.0 + 19.0 * (t / (2 * _HOUR) if t < 2 * _HOUR else max(0.0, 3 * _HOUR - t) / _HOUR)


def _flash_crowd(t: float) -> float:
    """3 per second; after an hour 24 within a minute, which wear off with a half-life of 12 minutes."""
    since = t - _HOUR
    if since < 0:
        return 3.0
    return 3.0 + 21.0 * (since / _MINUTE if since < _MINUTE else 0.5 ** ((since - _MINUTE) / (12 * _MINUTE)))


def _slow_start(t: float) -> float:
    """Steps of 4 per second every 25 minutes, where a replica takes 6 minutes to start."""
    return 4.0 * min(5, 1 + int(t // (25 * _MINUTE)))


SHAPES: Final = {
    "diurnal": Shape(_diurnal, 14.0, 16 * _HOUR, seed=1101),
    "burst": Shape(_burst, 16.0, 3 * _HOUR, seed=1102),
    "ramp": Shape(_ramp, 20.0, 3.5 * _HOUR, seed=1103),
    "flash-crowd": Shape(_flash_crowd, 24.0, 3 * _HOUR, seed=1104),
    "slow-start": Shape(_slow_start, 20.0, 2.5 * _HOUR, seed=1105, start_s=360.0),
}


def generate(shape: Shape) -> Iterator[Arrival]:
    """Returns an inhomogeneous Poisson process by thinning (Lewis and Shedler, 1979), the same for the same seed."""
    luck = random.Random(shape.seed)  # noqa: S311  demand is no secret
    at = 0.0
    while (at := at + luck.expovariate(shape.peak)) < shape.seconds:
        if luck.random() * shape.peak < shape.rate(at):
            yield Arrival(at, _tokens(luck, *_PROMPT_TOKENS), _tokens(luck, *_ANSWER_TOKENS))


def _tokens(luck: random.Random, middle: float, spread: float) -> int:
    return min(_MOST_TOKENS, max(1, round(luck.lognormvariate(middle, spread))))


def write(arrivals: Iterable[Arrival]) -> Iterator[str]:
    """Returns a trace as JSON lines."""
    for arrival in arrivals:
        yield json.dumps(asdict(arrival))


def read(lines: Iterable[str]) -> Iterator[Arrival]:
    """Reads a trace; TraceRefused names the line. Times must not go backwards."""
    before = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        arrival = _parse(line, number)
        if arrival.at < before:
            raise TraceRefused(f"line {number}: at {arrival.at} comes after {before}; times must be in order")
        before = arrival.at
        yield arrival


def _parse(line: str, number: int) -> Arrival:
    try:
        entry = json.loads(line)
        arrival = Arrival(float(entry["at"]), int(entry["prompt"]), int(entry["answer"]))
    except (ValueError, KeyError, TypeError) as error:
        raise TraceRefused(f"line {number}: {error!r}; it must be an object with at (seconds), prompt and answer (tokens)") from error
    if not (math.isfinite(arrival.at) and arrival.at >= 0 and arrival.prompt >= 1 and arrival.answer >= 1):
        raise TraceRefused(f"line {number}: {arrival}; it must have at >= 0, prompt >= 1, answer >= 1")
    return arrival
