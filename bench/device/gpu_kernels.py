"""Which trials of pagoda_kernels.gpu there are: each op that this tree has, at its sizes, in the order of what they tell."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import gpu_attention
import gpu_experts
import gpu_linear
import gpu_linear_w4
import gpu_lora
import gpu_pointwise
import gpu_sampling
import torch
from gpu_attention import Shape
from gpu_device import Machine
from gpu_numbers import Ceilings
from gpu_record import SIZES, Measurement
from gpu_sampling import Draws
from gpu_trial import OURS, Trial, measure

_PACKAGE = "pagoda_kernels.gpu"
_EXPECTED_S, _LONGEST_S = 5.0, 30.0  # the first of an op compiles for 1 or 2 s; on an H200 no measurement took 3
_BF16_LIMIT = 4e-3  # where the tree has no table of tolerances
Build = Callable[..., Trial]


class Case(NamedTuple):
    """One size of one op. `size`: large, knee or small; `module` is the op's file; `own`: the config that it chooses for this size, where
    others can be asked for."""

    op: str
    label: str
    size: str
    module: str
    build: Build
    own: Callable[[ModuleType], Any] | None = None

    @property
    def name(self) -> str:
        return f"{self.op}/{self.label}"


class Missing(NamedTuple):
    """An op that this tree does not have, or that cannot be imported, and why."""

    module: str
    why: str


_DECODE = {
    "b64-8k": ("large", Shape((8192,) * 64, (1,) * 64)),
    "b8-16k": ("large", Shape((16384,) * 8, (1,) * 8)),
    "b32-4k": ("large", Shape((4096,) * 32, (1,) * 32)),
    "b1-32k": ("knee", Shape((32768,), (1,))),
    "b256-1k": ("knee", Shape((1024,) * 256, (1,) * 256)),
    "b64-ragged": ("knee", Shape(tuple(128 * (1 + 7 * row % 64) - row for row in range(64)), (1,) * 64)),
    "b8-16k-page-16": ("knee", Shape((16384,) * 8, (1,) * 8, page=16)),
    "b1-4k": ("small", Shape((4096,), (1,))),
    "b1-1k": ("small", Shape((1024,), (1,))),
    "b8-4k-page-16": ("small", Shape((4096,) * 8, (1,) * 8, page=16)),
    "b8-16k-window-4k": ("small", Shape((16384,) * 8, (1,) * 8, window=4096)),
    "b8-2k-16-heads": ("small", Shape((2048,) * 8, (1,) * 8, heads=16)),
    "b8-8k-4-kv-heads": ("small", Shape((8192,) * 8, (1,) * 8, kv_heads=4)),
    "b1-128k": ("small", Shape((131072,), (1,))),
}
_PREFILL = {
    "8k": ("large", Shape((8192,), (8192,))),
    "16k": ("large", Shape((16384,), (16384,))),
    "2k-of-16k": ("knee", Shape((16384,), (2048,))),
    "2k": ("knee", Shape((2048,), (2048,))),
    "ragged-8k": ("knee", Shape((4096, 100, 1500, 777, 1, 1719), (4096, 100, 1500, 777, 1, 1719))),
    "8k-page-16": ("knee", Shape((8192,), (8192,), page=16)),
    "512": ("small", Shape((512,), (512,))),
    "16k-window-4k": ("small", Shape((16384,), (16384,), window=4096)),
}
_SAMPLE = {
    "b128-k-p-min": ("large", Draws(128, top_k=50, top_p=0.9, min_p=0.05)),
    "b128-plain": ("large", Draws(128)),
    "b128-p": ("knee", Draws(128, top_p=0.9)),
    "b128-k": ("knee", Draws(128, top_k=50)),
    "b128-p-flat": ("knee", Draws(128, top_p=0.9, sigma=1.0)),
    "b8-k-p-min": ("small", Draws(8, top_k=50, top_p=0.9, min_p=0.05)),
    "b1-p": ("small", Draws(1, top_p=0.9)),
}
_GREEDY = {
    "b128": ("large", Draws(128, temperature=0)),
    "b128-bf16": ("knee", Draws(128, temperature=0, dtype=torch.bfloat16)),
    "b8": ("small", Draws(8, temperature=0)),
}
_NARROW = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
COMPILED = (OURS, gpu_attention.WIDE, "liger", "xformers")
MODULES = (
    "paged_attention_decode",
    "paged_attention_prefill",
    "experts.moe_grouped",
    "sample",
    "rms_norm",
    "rope_kv_write",
    "silu_mul",
    "lora",
    "matrices.linear_w8a8",
    "quantise_rows",
    "matrices.linear_w4a16",
)


def cases() -> list[Case]:
    """All of them; ops that matter more stand first among those of a size."""
    pointwise = {
        "rms_norm": (gpu_pointwise.rms_norm, gpu_pointwise.sizes(), "rms_norm"),
        "add_rms_norm": (gpu_pointwise.add_rms_norm, gpu_pointwise.sizes(), "rms_norm"),
        "rope_kv_write": (gpu_pointwise.rope_kv_write, gpu_pointwise.rope_sizes(), "rope_kv_write"),
        "silu_mul": (gpu_pointwise.silu_mul, gpu_pointwise.mlp_sizes(), "silu_mul"),
    }
    found = [
        *_attention("paged_attention_decode", gpu_attention.decode, _DECODE),
        *_attention("paged_attention_prefill", gpu_attention.prefill, _PREFILL),
        *(case for name, kept in _NARROW.items() for case in _narrow("paged_attention_decode", gpu_attention.decode, _DECODE, name, kept)),
        *_narrow("paged_attention_prefill", gpu_attention.prefill, _PREFILL, "fp8", torch.float8_e4m3fn),
        *_experts(),
        *_sampling("sample", _SAMPLE),
        *_sampling("greedy", _GREEDY),
        *_adapters(),
        *_matrices(),
        *_matrices_of_4_bits(),
    ]
    for op, (build, rows, module) in pointwise.items():
        found += [Case(op, _label(one), size, module, partial(_rows, build, one)) for size, one in rows]
    return found


def _narrow(op: str, build: Build, shapes: Mapping[str, tuple[str, Shape]], name: str, kept: torch.dtype) -> Iterator[Case]:
    """The same sizes over keys and values of 8 bits, judged by what these stand for."""
    for label, (size, shape) in shapes.items():
        yield Case(f"{op}_{name}", label, size, op, partial(_shaped, build, replace(shape, kept=kept)), default_config)


def _label(rows: gpu_pointwise.Rows) -> str:
    return f"{rows.tokens}x{rows.width}" + ("-norms" if rows.norms else "") + (f"-{rows.kept}" if rows.kept else "")


def _attention(op: str, build: Build, shapes: Mapping[str, tuple[str, Shape]]) -> Iterator[Case]:
    return (Case(op, label, size, op, partial(_shaped, build, shape), default_config) for label, (size, shape) in shapes.items())


def _experts() -> Iterator[Case]:
    build, op = gpu_experts.trial, "moe_grouped"
    module = "experts.moe_grouped"
    return (
        Case(op, label, size, module, partial(_shaped, build, one), one.own_config) for label, (size, one) in gpu_experts.sizes().items()
    )


def _sampling(op: str, draws: Mapping[str, tuple[str, Draws]]) -> Iterator[Case]:
    return (Case(op, label, size, "sample", partial(_drawn, one)) for label, (size, one) in draws.items())


def _adapters() -> Iterator[Case]:
    for size, steps in gpu_lora.STEPS.items():
        yield from (Case("lora", step.name, size, "lora", partial(_changed, step), default_config) for step in steps)


def _matrices() -> Iterator[Case]:
    for size, shape in gpu_linear.sizes():
        for kind in gpu_linear.KINDS:
            one = replace(shape, kind=kind)
            yield Case(f"linear_{kind}", one.label, size, "matrices.linear_w8a8", partial(_shaped, gpu_linear.linear, one), one.own_config)
    for size, shape in gpu_linear.quantised_sizes():
        yield Case("quantise_rows", shape.label, size, "quantise_rows", partial(_shaped, gpu_linear.quantise, shape))


def _matrices_of_4_bits() -> Iterator[Case]:
    for size, one in gpu_linear_w4.sizes():
        build = partial(_shaped, gpu_linear_w4.linear, one)
        yield Case("linear_w4a16", one.label, size, "matrices.linear_w4a16", build, default_config)


def _rows(build: Build, rows: gpu_pointwise.Rows, op: ModuleType, machine: Machine, _: Any) -> Trial:
    return build(op, rows, machine, limit())


def _shaped(build: Build, shape: Any, op: ModuleType, machine: Machine, config: Any) -> Trial:
    return build(op, shape, machine, limit(), config)


def _drawn(draws: Draws, op: ModuleType, machine: Machine, _: Any) -> Trial:
    return gpu_sampling.trial(op, draws, machine)


def _changed(step: gpu_lora.Step, op: ModuleType, machine: Machine, config: Any) -> Trial:
    return gpu_lora.trial(op, step, machine, limit(), config)


def limit() -> float:
    """The largest relative error of a right bf16 result: the tests' table, where the tree has it."""
    try:
        testing = importlib.import_module("pagoda_kernels.testing")
    except ModuleNotFoundError:
        return _BF16_LIMIT
    return float(testing.TOLERANCE["bf16"])


def present(modules: Sequence[str] = MODULES) -> tuple[dict[str, ModuleType], list[Missing]]:
    """The ops of this tree by the names of their files, and those that it lacks."""
    found, missing = {}, []
    for name in modules:
        try:
            found[name] = importlib.import_module(f"{_PACKAGE}.{name}")
        except ModuleNotFoundError as wrong:
            missing.append(Missing(name, "not in this tree" if (wrong.name or "").startswith(_PACKAGE) else str(wrong)))
        except Exception as wrong:  # noqa: BLE001 - one op that cannot be imported does not keep the others
            missing.append(Missing(name, f"{type(wrong).__name__}: {wrong}"))
    return found, missing


def measurements(machine: Machine, ops: Mapping[str, ModuleType], configs: Mapping[str, Sequence[str]]) -> list[Measurement]:
    """Sizes first, then ops. `configs`: by op, texts as of `--configs`; each case is then measured with each of them as well."""
    found = []
    for place, case in enumerate(cases()):
        if case.module not in ops:
            continue
        op = ops[case.module]
        texts = configs.get(case.op, ()) if case.own else ()
        asked = [config for text in texts for config in config_grid(op, text, case.own)]
        for index, config in enumerate([None, *asked]):
            name = case.name if config is None else f"{case.name} [{describe(config)}]"
            rank = (SIZES.index(case.size), place, index)
            run, compiled = (partial(what, case, op, machine, config) for what in (_run, _compile))
            found.append(Measurement(name, rank, run, _EXPECTED_S, _LONGEST_S, compiled))
    return found


def config_grid(op: ModuleType, text: str, own: Callable[[ModuleType], Any] | None = None) -> list[Any]:
    """`tile=64|128,stages=3|4`: Configs of the op with every combination, over its `own` choice (default: at head_dim 128)."""
    wanted = dict(part.split("=", 1) for part in text.split(","))
    default = (own or default_config)(op)
    known = {field.name for field in fields(default)}
    if unknown := wanted.keys() - known:
        raise ValueError(f"{sorted(unknown)}: {op.__name__}.Config has {sorted(known)}")
    values = [[type(getattr(default, name))(int(one)) for one in choice.split("|")] for name, choice in wanted.items()]
    return [replace(default, **dict(zip(wanted, chosen, strict=True))) for chosen in itertools.product(*values)]


def default_config(op: ModuleType) -> Any:
    """Of bf16 heads of 128 numbers; of adapters, of rows that decode; of matrices, of few rows."""
    if hasattr(op, "lora_config"):
        return op.lora_config(16, 2)
    if hasattr(op, "w4_config"):
        return op.w4_config(16)
    return op.decode_config(128, 2) if hasattr(op, "decode_config") else op.choose_config(128, torch.bfloat16)


def describe(config: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in asdict(config).items())


def _run(case: Case, op: ModuleType, machine: Machine, config: Any, ceilings: Ceilings) -> dict[str, Any]:
    torch.manual_seed(0)
    return {"op": case.op, "size": case.size} | measure(case.build(op, machine, config), machine, ceilings)


def _compile(case: Case, op: ModuleType, machine: Machine, config: Any) -> None:
    """Call each side that Triton compiles once, on one set of buffers. What is wrong with it is said when it is measured."""
    sides = case.build(op, replace(machine, l2=0), config).sides
    for make in (make for name, make in sides.items() if name in COMPILED):
        with suppress(Exception):
            make().calls[0]()
    machine.released()
