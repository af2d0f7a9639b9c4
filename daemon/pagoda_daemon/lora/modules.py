"""The modules of a model that an adapter may change, by the names that peft has for them. Pure; called by `lora.load`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pagoda_daemon.core.errors import AdapterRejected
from pagoda_daemon.model.config import ModelSpec
from pagoda_daemon.model.lowrank import Part
from pagoda_daemon.model.packed_lowrank import native_bytes, pooled_elements

_PREFIX: Final = "base_model.model."
_KEY: Final = re.compile(r"base_model\.model\.(?P<module>[\w.]{1,200})\.lora_[AB]\.weight")
_NATIVE: Final = (*(f"self_attn.{part}_proj" for part in "qkvo"), *(f"mlp.{part}_proj" for part in ("gate", "up", "down")))
_OUTER: Final = ("lm_head", "embed_tokens")


class Module(NamedTuple):
    """A linear map, one of those that are fused into `part` of `layer`."""

    name: str
    layer: int
    part: Part
    inputs: int
    outputs: int

    def key(self, matrix: str) -> str:
        """Of its tensor in a file."""
        return f"{_PREFIX}{self.name}.lora_{matrix}.weight"


def modules_of(spec: ModelSpec) -> dict[str, Module]:
    """By name, those of one part in the order in which they are fused. Experts and their routers are not among them."""
    return {module.name: module for layer in range(spec.layers) for module in _of_layer(spec, layer)}


def native_order(spec: ModelSpec) -> list[str]:
    """Names of the seven modules that the native ops know of each layer; a layer of experts has no use for the last three."""
    return [f"model.layers.{layer}.{name}" for layer in range(spec.layers) for name in _NATIVE]


def _of_layer(spec: ModelSpec, layer: int) -> Iterator[Module]:
    heads, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    base = f"model.layers.{layer}"
    for name, size in (("q_proj", heads), ("k_proj", kv), ("v_proj", kv)):
        yield Module(f"{base}.self_attn.{name}", layer, "qkv", spec.hidden, size)
    yield Module(f"{base}.self_attn.o_proj", layer, "output", heads, spec.hidden)
    if not spec.sparse[layer]:
        for name in ("gate_proj", "up_proj"):
            yield Module(f"{base}.mlp.{name}", layer, "gate_up", spec.hidden, spec.intermediate)
        yield Module(f"{base}.mlp.down_proj", layer, "down", spec.intermediate, spec.hidden)


def parts_of(modules: Iterable[Module]) -> dict[tuple[int, Part], list[Module]]:
    """The modules of each fused part of each layer, in the order in which they are fused."""
    parts: dict[tuple[int, Part], list[Module]] = {}
    for module in modules:
        parts.setdefault((module.layer, module.part), []).append(module)
    return parts


def adapter_bytes(spec: ModelSpec, rank: int, item: int) -> int:
    """Of one that changes every module, in memory: a fused part keeps all its ranks for all its outputs."""
    parts = parts_of(modules_of(spec).values()).values()
    return item * rank * sum(len(fused) * (fused[0].inputs + sum(one.outputs for one in fused)) for fused in parts)


def native_adapter_bytes(spec: ModelSpec, rank: int) -> int:
    """As `adapter_bytes`, for the CPU's native ops."""
    return sum(native_bytes(rank, module.inputs, module.outputs) for module in modules_of(spec).values())


def pooled_adapter_elements(spec: ModelSpec, rank: int) -> int:
    """Numbers of one in the device's pool that changes every module."""
    return sum(pooled_elements(rank, module.inputs, module.outputs) for module in modules_of(spec).values())


def refuse_unknown(keys: Collection[str], modules: Mapping[str, Module], wanted: Mapping[str, Module]) -> None:
    """AdapterRejected for a tensor that has no place, and for a place without its tensor."""
    if not wanted:
        raise AdapterRejected("target_modules name no module of this model")
    for key in sorted(keys):
        found = _KEY.fullmatch(key)
        name = found["module"] if found else key.removeprefix(_PREFIX)
        if found is None or name not in wanted:
            raise AdapterRejected(f"{key:.200}: {_why(name, plain=found is not None, known=name in modules)}")
    absent = [key for module in wanted.values() for key in (module.key("A"), module.key("B")) if key not in keys]
    if absent:
        raise AdapterRejected(f"the file lacks {len(absent)} tensors that target_modules call for, such as {absent[0]}")


def _why(name: str, *, plain: bool, known: bool) -> str:
    if any(outer in name.split(".") for outer in _OUTER):
        return "changes of lm_head and of embeddings are not supported"
    if ".experts." in name or name.endswith((".gate", ".router")):
        return "changes of experts and routers are not supported"
    if not plain:
        return "is not a LoRA matrix"
    return "is not among the target_modules of adapter_config.json" if known else "this model has no such module: another base model?"
