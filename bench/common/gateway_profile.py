"""Where a process's time goes, as py-spy samples it; for bench/gateway.py."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from gateway_load import Target, closed_loop


async def profiled(py_spy: str, pid: int, target: Target, folder: Path, seconds: float) -> dict[str, Any]:
    """Returns shares of functions under whole answers and under streams."""
    out = {}
    for kind in ("whole", "stream"):
        file = folder / f"{kind}.txt"
        argv = ["record", "-p", str(pid), "-d", str(round(seconds)), "-r", "200", "-f", "raw", "-t", "-o", str(file)]
        spy = await asyncio.create_subprocess_exec(py_spy, *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL)
        await closed_loop(target, kind, seconds + 2)
        await spy.wait()
        out[kind] = top(file.read_text())
    return out


def top(collapsed: str, most: int = 70) -> dict[str, list[list[Any]]]:
    """Returns shares of the busiest thread in %: of functions alone, and with all that they call."""
    threads: dict[str, Counter[tuple[str, ...]]] = {}
    for line in collapsed.splitlines():
        stack, _, count = line.rpartition(" ")
        thread, *frames = stack.split(";")
        threads.setdefault(thread, Counter())[tuple(frame.rpartition(":")[0] or frame for frame in frames)] += int(count)
    busiest = max(threads.values(), key=Counter.total)
    alone: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for stacked, samples in busiest.items():
        alone[stacked[-1]] += samples
        below.update(dict.fromkeys(stacked, samples))
    total = alone.total() or 1
    return {name: [[key, round(100 * n / total, 1)] for key, n in c.most_common(most)] for name, c in (("alone", alone), ("below", below))}
