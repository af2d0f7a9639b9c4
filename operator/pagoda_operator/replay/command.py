"""command: `pagoda-operator replay TRACE.jsonl`: replicas, queue, misses and GPU hours of a trace under our policy and under an HPA.

Called by `__main__`. Reads and writes files and standard output, nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Final, TextIO

from pagoda_contracts.resources.scaling import ScalingSpec
from pydantic import ValidationError

from pagoda_operator.api.errors import TraceRefused
from pagoda_operator.api.state import explain
from pagoda_operator.decide.scale.learned import DAY_S
from pagoda_operator.decide.scale.schedules import refused
from pagoda_operator.replay.policies import Calendar, hpa, pagoda, plain
from pagoda_operator.replay.simulation import Bounds, Outcome, Replica, replay
from pagoda_operator.replay.traces import SHAPES, Arrival, generate, read, write

_LINES: Final = 24


def main(argv: Sequence[str], out: TextIO = sys.stdout) -> int:
    """The exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.generate:
        with suppress(BrokenPipeError):  # `| head` has read enough
            out.writelines(f"{line}\n" for line in write(generate(SHAPES[arguments.generate])))
            out.flush()
        return 0
    try:
        found = _replayed(arguments)
    except (OSError, TraceRefused) as error:
        sys.stderr.write(f"pagoda-operator replay: {arguments.trace}: {error}\n")
        return 2
    if arguments.json:
        out.writelines(json.dumps(_summary(outcome)) + "\n" for outcome in found)
    else:
        out.write(_table(found))
    return 0


def _replayed(arguments: argparse.Namespace) -> list[Outcome]:
    """Ours, then an HPA's, within the same bounds; schedules may widen ours. An HPA at 0 is off, so it begins at 1."""
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
    """A spec.scaling in JSON."""
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
    parser = argparse.ArgumentParser(prog="pagoda-operator replay", description="What scaling would have done with recorded demand.")
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
        raise TraceRefused("no line holds a request")
    return arrivals


def _summary(outcome: Outcome) -> dict[str, object]:
    return {name: value for name, value in asdict(outcome).items() if name != "course"}


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
