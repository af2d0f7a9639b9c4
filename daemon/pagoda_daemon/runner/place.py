"""Where a model lives: the torch device that the configuration asks for, and the memory there. Called by `runner.load`."""

from __future__ import annotations

from typing import Final

import torch
from pagoda_kernels.cpu.choice import chosen

from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.runner.host import Host, Memory

AUTO: Final = "auto"


def place_of(device: str | None) -> torch.device:
    """ConfigRejected where a device is asked for by name that is not there: a service that silently falls back to CPU is an outage."""
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise ConfigRejected("engine.device is cuda, but torch finds no CUDA device here; use cpu or auto, or a pod with a GPU")
    return torch.device("cuda" if there else "cpu") if device in (None, AUTO) else torch.device(device)


def computed_by(place: torch.device, threads: int, *, native: bool) -> str:
    """Device and instruction set, for people. CUDA's name of a MIG slice ends in its profile (MIG 1g.10gb). Not the device's uuid: replicas
    that compute alike say the same here, or no stream would continue on another one."""
    if place.type == "cuda":
        return f"{torch.cuda.get_device_name(place)}, {'fused ops' if native else 'PyTorch'}"
    variant = chosen() if native else None
    with_what = f"{variant.instructions}, native ops" if variant else f"{torch.backends.cpu.get_cpu_capability()}, PyTorch"
    return f"CPU, {threads} thread{'s' * (threads != 1)}, {with_what}"


def uuid_of(place: torch.device) -> str:
    """Of the GPU or the MIG slice, by which NVML finds it; empty on CPU."""
    return str(torch.cuda.get_device_properties(place).uuid) if place.type == "cuda" else ""


def memory_at(place: torch.device, host: Host) -> Memory:
    """All and free bytes where weights and KV go. On a device the driver's own share is taken already. A MIG slice is a CUDA device of its
    own, whose memory this is, not its parent's (cuMemGetInfo: "memory available to the current context")."""
    if place.type == "cpu":
        return host.memory()
    free, total = torch.cuda.mem_get_info(place)
    return Memory(total, free, limited=True, kind="device")
