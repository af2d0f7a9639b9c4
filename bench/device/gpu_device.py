"""The device that bench/gpu.py measures on: CUDA, timed by replays of graphs, or a dry stand-in on which each call runs once, untimed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gpu_numbers import Timed, graph_calls, replays, timed
from torch import Tensor

Call = Callable[[], Any]
_ROUNDS = 7
_HEAD_START = 200_000  # cycles that the device idles before a sample, while the host launches what is timed: 0.1 ms
_ROOM = 8 << 30  # bytes that one measurement's buffers may take, where the device has three times as much
_DRY_L2, _DRY_ROOM = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class Machine:
    """`room`: bytes that the buffers of one measurement may take. `dry`: shapes are tiny, nothing is timed. `peers`: of gpu_peers."""

    device: torch.device
    l2: int
    room: int
    dry: bool
    peers: tuple[str, ...] = ()

    def randn(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, device=self.device, dtype=dtype)

    def facts(self) -> dict[str, Any]:
        """What a document of measurements holds for: another device or version begins another document."""
        import triton

        versions = {"torch": torch.__version__, "triton": triton.__version__}
        if self.dry:
            return {"device": "dry", **versions}
        properties = torch.cuda.get_device_properties(self.device)
        return {
            "device": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "l2_bytes": properties.L2_cache_size,
            "driver": _driver(),
            **versions,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }

    def prove(self, call: Call, poison: Call) -> Any:
        """What the call leaves when it is replayed from a graph, on buffers that are spoilt after the capture, which runs it, too."""
        if self.dry:
            poison()
            return call()
        graph, found = _captured([call])
        poison()
        graph.replay()
        torch.cuda.synchronize()
        return found

    def time(self, sides: dict[str, Sequence[Call]], floor_us: float) -> dict[str, Timed]:
        """Each side's calls in a graph of its own, replayed in turn. `floor_us`: what a call takes at least. Empty where dry."""
        if self.dry:
            return {}
        graphs = {}
        for name, calls in sides.items():
            count = graph_calls(len(calls), floor_us, _called_us(calls[0]))
            graphs[name] = _captured([calls[index % len(calls)] for index in range(count)])[0], count
        often = {}
        for name, (graph, _) in graphs.items():
            _sample_us(graph, 1)
            often[name] = replays(_sample_us(graph, 1))
        rounds: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(_ROUNDS):
            for name, (graph, count) in graphs.items():
                rounds[name].append(_sample_us(graph, often[name]) / count)
        return {name: timed(found) for name, found in rounds.items()}

    def time_called(self, sides: dict[str, Sequence[Call]]) -> dict[str, Timed]:
        """Of calls that no graph can hold: the host's part included."""
        if self.dry:
            return {}
        return {name: timed([_called_us(calls[index % len(calls)]) for index in range(_ROUNDS)]) for name, calls in sides.items()}

    def released(self) -> None:
        """Hand the memory of a measurement back, so that the next one finds it in one piece. Raises what the device has to report."""
        if not self.dry:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def cuda(peers: tuple[str, ...]) -> Machine:
    device = torch.device("cuda", torch.cuda.current_device())
    room = min(_ROOM, torch.cuda.mem_get_info()[1] // 6)
    return Machine(device, torch.cuda.get_device_properties(device).L2_cache_size, room, dry=False, peers=peers)


def dry() -> Machine:
    return Machine(torch.device("cpu"), _DRY_L2, _DRY_ROOM, dry=True)


def _captured(calls: Sequence[Call]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of all calls, and what the last one returns: it is written anew by every replay."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for call in calls[:2]:
            call()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    graph, found = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        for call in calls:
            found = call()
    return graph, found


def _called_us(call: Call) -> float:
    """Microseconds of a call that was warm already, the host's part included."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e6


def _sample_us(graph: torch.cuda.CUDAGraph, count: int) -> float:
    """Microseconds of one replay, in the mean of `count`."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(_HEAD_START)  # noqa: SLF001 - the only way to keep the device busy without memory
    begin.record()
    for _ in range(count):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


def _driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"
