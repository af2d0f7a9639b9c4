"""Random LoRA adapters of any decoder in memory, for torch and for the native ops alike."""

from __future__ import annotations

from collections.abc import Callable

import torch
from pagoda_daemon.lora.load import Matrices
from pagoda_daemon.lora.modules import Module, modules_of
from pagoda_daemon.model.config import ModelSpec


def matrices(spec: ModelSpec, seed: int, rank: Callable[[Module], int], size: float = 1.0) -> Matrices:
    """`rank` of each module, 0 for one that is not changed. With a size of 1, an adapter adds as much as a module makes."""
    random = torch.Generator().manual_seed(seed)
    pairs = {}
    for name, module in modules_of(spec).items():
        if ranks := rank(module):
            shrink = torch.randn(ranks, module.inputs, generator=random) * module.inputs**-0.5
            expand = torch.randn(module.outputs, ranks, generator=random) * size * ranks**-0.5
            pairs[name] = (shrink.bfloat16(), expand.bfloat16())
    return Matrices(f"sha256:{seed}", max(len(shrink) for shrink, _ in pairs.values()), pairs)


def wide(found: Matrices) -> Matrices:
    """The same numbers in fp32."""
    return found._replace(pairs={name: (shrink.float(), expand.float()) for name, (shrink, expand) in found.pairs.items()})
