"""Door of `pagoda-daemon simulate`: command line → trace, device and core → report. Decides nothing else."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pagoda_contracts.launch import EngineConfig, token_budget
from pagoda_sizing.devices import CPU

from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.scheduler.limits import Limits
from pagoda_daemon.simulated.device.pace import Pace
from pagoda_daemon.simulated.device.virtual import Metronome
from pagoda_daemon.simulated.replay import report, trace
from pagoda_daemon.simulated.replay.run import Simulation

_DEFAULTS = EngineConfig()


def main(argv: Sequence[str]) -> None:
    """Run and print; exits 2 on what cannot be simulated."""
    arguments = _parser().parse_args(argv)
    try:
        found = _run(arguments)
    except ConfigRejected as error:
        sys.stderr.write(f"pagoda-daemon simulate: {error}\n")
        sys.exit(2)
    sys.stdout.write((msgspec.json.encode(found).decode() if arguments.json else report.text(found)) + "\n")


def _run(arguments: argparse.Namespace) -> report.Report:
    jobs = trace.read(arguments.trace)
    pace = Pace.read(arguments.model, arguments.device, arguments.quantization, arguments.tensor_parallel)
    worker = Metronome(pace.limits(arguments.block_size, arguments.max_model_len), pace.milliseconds)
    tokens = token_budget(arguments.token_budget, cuda=arguments.device != CPU)
    caching = not arguments.no_prefix_caching
    limits = Limits.of(worker.limits, arguments.max_concurrency, tokens, prefix_caching=caching)
    outcome = Simulation(jobs, worker, limits, arguments.seed).run()
    return report.report(outcome, report.Objective(arguments.ttft_ms, arguments.itl_ms))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pagoda-daemon simulate", description="Runs a trace through the scheduler on a simulated device.")
    parser.add_argument("trace", type=Path, help="JSON lines: arrival_ms, prompt_tokens, output_tokens and more")
    parser.add_argument("--model", type=Path, required=True, help="config.json of the model")
    parser.add_argument("--device", required=True, help="a device of the catalogue, as h100 or h100:3g.40gb")
    parser.add_argument("--quantization", default="bf16", help="format of the weights (default: %(default)s)")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="devices over which each layer is spread (default: %(default)s)")
    parser.add_argument("--max-concurrency", type=int, default=_DEFAULTS.max_concurrency, help="rows (default: %(default)s)")
    parser.add_argument("--token-budget", type=int, help="tokens a step (default: as of the daemon on such a device)")
    parser.add_argument("--block-size", type=int, default=_DEFAULTS.block_size, help="tokens a block (default: %(default)s)")
    parser.add_argument("--max-model-len", type=int, help="longest context (default: the model's)")
    parser.add_argument("--no-prefix-caching", action="store_true", help="compute equal beginnings again")
    parser.add_argument("--ttft-ms", type=float, default=1000.0, help="objective for the first token (default: %(default)s)")
    parser.add_argument("--itl-ms", type=float, default=100.0, help="objective for every gap between tokens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the shedder's luck (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser
