"""What a GPU reaches: its ceilings, each kernel of pagoda_kernels.gpu as a share of them beside torch, and the engine.

`PYTHONPATH=kernels python3 -P bench/gpu.py [--parts ceilings,kernels,end-to-end] [--only PATTERN,…] [--out FILE.json] [--budget SECONDS]`
Prints JSON, and a table on standard error. Each result is proven against float64 before it is timed; times are medians of graphs that
are replayed in turn. `--out` is written after each measurement, and a second run skips what it holds, unless `--again`.
`--configs 'paged_attention_decode:tile=64|128,stages=3|4'` measures these beside the kernel's own choice. `--dry`: tiny shapes, each
call once, no times; needs no GPU.

Ends with 2 without a GPU. When a kernel hangs (1, after 30 s) or breaks the device's state (3), run it again with the same `--out`: it goes
on behind that kernel, which stands in the document as failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "device"))

from gpu_record import Measurement, OtherDevice, Record, chosen, fits, summary, table

PARTS = ("ceilings", "kernels", "end-to-end")
PEERS = ("liger", "xformers", "flashinfer")  # the last one compiles for minutes when it is first called
_COMPILE_S = 60  # seconds that the processes may take that compile
NO_GPU, BROKEN = 2, 3


def main(argv: list[str] | None = None) -> int:
    arguments = parsed(argv)
    if arguments.dry:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    import torch

    if not arguments.dry and not torch.cuda.is_available():
        print("bench/gpu.py needs a CUDA device, and torch finds none.", file=sys.stderr)
        return NO_GPU
    return measured(arguments)


def parsed(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=_words(PARTS), default=list(PARTS[:2]), help=f"of {','.join(PARTS)}")
    parser.add_argument("--only", type=_words(), default=[], help="measurements with one of these patterns in their names")
    parser.add_argument("--configs", action="append", default=[], metavar="OP:FIELD=A|B,…", help="more than once, if need be")
    parser.add_argument("--peers", type=_words(PEERS), default=list(PEERS[:2]), help=f"of {','.join(PEERS)}, where they can be imported")
    parser.add_argument("--out", type=Path, help="the document to go on with")
    parser.add_argument("--again", action="store_true", help="measure what --out holds already, too")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds")
    parser.add_argument("--dry", action="store_true", help="on the CPU")
    parser.add_argument("--workers", type=int, default=0, help="processes that compile the kernels first: for many --configs")
    parser.add_argument("--share", type=_share, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="what would be measured, in order")
    return parser.parse_args(argv)


def _words(known: tuple[str, ...] = ()) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = [word for word in text.split(",") if word]
        if known and (wrong := set(found) - set(known)):
            raise argparse.ArgumentTypeError(f"{sorted(wrong)} must be of {', '.join(known)}")
        return found

    return read


def _share(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    return int(index), int(count)


def measured(arguments: argparse.Namespace) -> int:
    from gpu_device import cuda, dry
    from gpu_peers import importable

    begun = time.monotonic()
    machine = dry() if arguments.dry else cuda(importable(arguments.peers))
    try:
        record = Record.open(arguments.out, machine.facts())
    except OtherDevice as wrong:
        print(wrong, file=sys.stderr)
        return 1
    all_of_them, remarks = planned(arguments, machine)
    left = chosen(all_of_them, () if arguments.again else record.results, arguments.only)
    if arguments.list:
        print("\n".join(one.name for one in left))
        return 0
    if arguments.share:
        return compiled(left, *arguments.share)
    if not arguments.dry:
        compile_beside(left, arguments.workers)
    with honest() if arguments.dry else nullcontext():
        code, late = worked_off(left, record, machine, arguments.budget - (time.monotonic() - begun))
    remarks["left out for the budget"] = late
    print(json.dumps(record.document() | {"remarks": {name: text for name, text in remarks.items() if text}}, indent=1), flush=True)
    print(table(record.results), file=sys.stderr)
    return code


def compile_beside(left: list[Measurement], workers: int) -> None:
    """Compile what will be measured in so many processes, since one kernel takes seconds of one core. What fails, fails again below."""
    count = min(workers, sum(one.compile is not None for one in left))
    command = [sys.executable, "-P", __file__, *sys.argv[1:], "--share"]
    started = [
        subprocess.Popen([*command, f"{index}/{count}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for index in range(count)
    ]
    ends = time.monotonic() + _COMPILE_S
    for process in started:
        try:
            process.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def compiled(left: list[Measurement], index: int, count: int) -> int:
    """One process of these."""
    for one in [one for one in left if one.compile][index::count]:
        one.compile()
    return 0


def honest() -> AbstractContextManager[Any]:
    """Triton's interpreter computes bf16 as no device does, unless the tree has what mends it."""
    try:
        return importlib.import_module("pagoda_kernels.interpreter.honest").HonestInterpreter()
    except ModuleNotFoundError:
        return nullcontext()


def planned(arguments: argparse.Namespace, machine: Any) -> tuple[list[Measurement], dict[str, Any]]:
    """What there is to measure, and remarks on what there is not."""
    found: list[Measurement] = []
    remarks: dict[str, Any] = {}
    if "kernels" in arguments.parts:
        import gpu_kernels

        ops, missing = gpu_kernels.present()
        remarks["missing ops"] = {one.module: one.why for one in missing}
        found += gpu_kernels.measurements(machine, ops, _configs(arguments.configs))
    if "end-to-end" in arguments.parts:
        try:
            for part in ("gpu_engine", "gpu_launches"):
                found += importlib.import_module(part).measurements(machine, arguments)
        except ModuleNotFoundError as wrong:
            remarks["end-to-end"] = str(wrong)
    return found, remarks


def _configs(texts: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text in texts:
        op, _, fields = text.partition(":")
        found.setdefault(op, []).append(fields)
    return found


def worked_off(left: list[Measurement], record: Record, machine: Any, budget: float) -> tuple[int, list[str]]:
    """The exit code, and what there was no time for. What takes too long is passed over: a shorter one may still fit."""
    begun, late = time.monotonic(), []
    longest: dict[str, float] = {}
    ceilings = measured_ceilings(record, machine)
    for one in left:
        before = time.monotonic()
        if not fits(one, budget - (before - begun), longest):
            late.append(one.name)
            continue
        record.begin(one.name)
        result, whole = _one(one, ceilings, machine)
        took = time.monotonic() - before
        longest[one.kind] = max(took, longest.get(one.kind, 0.0))
        record.add(one.name, {**result, "seconds": round(took, 2)})
        print(f"{time.monotonic() - begun:6.1f} s  {one.name}: {summary(result)}", file=sys.stderr, flush=True)
        if not whole:
            return BROKEN, [*late, *(other.name for other in left[left.index(one) + 1 :])]
    return 0, late


def measured_ceilings(record: Record, machine: Any) -> Any:
    """Of this process: every percentage is of what the same process has reached."""
    from gpu_ceilings import assumed, ceilings

    found = assumed() if machine.dry else ceilings(machine)
    record.ran({"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "ceilings": found.document()})
    return found


def _one(measurement: Measurement, ceilings: Any, machine: Any) -> tuple[dict[str, Any], bool]:
    """The result, and whether the device can still be used."""
    from gpu_trial import message

    if not machine.dry:
        faulthandler.dump_traceback_later(measurement.longest_s, exit=True)  # it goes on behind a kernel that hangs, when run again
    try:
        result = measurement.run(ceilings)
    except (Exception, SystemExit) as wrong:  # noqa: BLE001 - the other measurements go on
        result = {"error": message(wrong)}
    try:
        machine.released()
    except RuntimeError as wrong:
        return result | {"error": result.get("error") or message(wrong)}, False
    finally:
        faulthandler.cancel_dump_traceback_later()
    return result, True


if __name__ == "__main__":
    sys.exit(main())
