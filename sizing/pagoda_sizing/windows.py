"""Which layers look back over a window only: one rule per family, as its config class in transformers derives them.

Called by `families`; a list `layer_types` in config.json, where present, wins over every rule.
"""

from __future__ import annotations

from collections.abc import Callable

from pagoda_sizing.config import Config
from pagoda_sizing.errors import BadConfig

Windows = tuple[int | None, ...]


def all_layers(config: Config, layers: int) -> Windows:
    """Mistral, Phi-3: every layer has the window, where there is one at all."""
    return _derived(config, layers, lambda _layer: True)


def alternate(config: Config, layers: int) -> Windows:
    """Gemma 2: even layers are local, odd ones see everything."""
    return _derived(config, layers, lambda layer: layer % 2 == 0)


def every_nth_full(config: Config, layers: int) -> Windows:
    """Gemma 3: every sixth layer sees everything, five are local."""
    pattern = config.number("sliding_window_pattern")
    return _derived(config, layers, lambda layer: (layer + 1) % pattern != 0)


def qwen_upper(config: Config, layers: int) -> Windows:
    """Qwen: only where `use_sliding_window` is on, and only from layer `max_window_layers` upwards."""
    if not config.flag("use_sliding_window"):
        return (None,) * layers
    first = config.number("max_window_layers", minimum=0)
    return _derived(config, layers, lambda layer: layer >= first)


def qwen_all(config: Config, layers: int) -> Windows:
    """Qwen3-MoE: every layer, where `use_sliding_window` is on; transformers does not read `max_window_layers` for it."""
    return all_layers(config, layers) if config.flag("use_sliding_window") else (None,) * layers


def _derived(config: Config, layers: int, local: Callable[[int], bool]) -> Windows:
    window = config.optional("sliding_window")
    named = config.names("layer_types", layers)
    if named is None:
        return tuple(window if window is not None and local(layer) else None for layer in range(layers))
    unknown = sorted(set(named) - {"full_attention", "sliding_attention"})
    if unknown:
        raise BadConfig(f"config.json: layer_types must be full_attention or sliding_attention, got {unknown[0]!r}")
    if window is None and "sliding_attention" in named:
        raise BadConfig("config.json: layer_types has sliding_attention, but sliding_window is missing")
    return tuple(window if kind == "sliding_attention" else None for kind in named)
