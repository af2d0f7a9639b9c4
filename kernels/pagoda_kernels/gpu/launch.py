"""cached: launches of a kernel without Triton's dispatch, once its binary is there. Around every kernel that a step launches.

Triton finds a binary anew in each launch: it binds the arguments, builds a description of them and of the options, and looks it up as a
string. That is 20 to 60 us of the host (11 arguments, measured with a launcher that does nothing), and a step that is not a CUDA graph has
ten launches per layer. Here a binary is found by what it was compiled for, and handed to the launcher that Triton made for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import JITFunction, driver
from triton.tools.tensor_descriptor import TensorDescriptor

_LAUNCH: Final = (
    "kernel.run(grid_0, grid_1, grid_2, stream, kernel.function, kernel.packed_metadata, launch_metadata, "
    "knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, *bound_args.values())"
)
"""How Triton calls the launcher of a binary, in 3.6 to 3.9."""

_UNALIGNED: Final = 15
"""The bits of an address that is not a multiple of 16."""

_INT32: Final = range(-(2**31), 2**31)
_BY_TYPE: Final = frozenset((float, bool, type(None)))
"""Arguments whose value decides about no binary."""


@cache
def why_not() -> str | None:
    """Why all launches go through Triton's dispatch; None: they do not."""
    if torch.version.hip is not None:
        return "on AMD a binary also depends on the bytes of each tensor"
    try:
        source = inspect.getsource(JITFunction.run)
    except (OSError, TypeError):
        return f"the source of Triton {triton.__version__} is not there to be read"
    return None if _LAUNCH in " ".join(source.split()) else f"Triton {triton.__version__} launches binaries in another way"


def on_compile(note: Callable[[str], object]) -> None:
    """From now on tell `note` the name of each kernel that Triton compiles, or reads from its cache on disk: a launch waits for either."""
    before = knobs.runtime.jit_post_compile_hook

    def hook(**told: Any) -> Any:
        note(told["fn"].name)
        return before(**told) if before is not None else None

    knobs.runtime.jit_post_compile_hook = hook


def cached(kernel: Any) -> Any:
    """`kernel`, a @triton.jit function, to be launched as before: `kernel[grid](…)`. The interpreter's stay as they are."""
    return Cached(kernel) if isinstance(kernel, JITFunction) else kernel


class Cached:
    """Arguments that are no constants come first, by position; constants and options by name.

    A binary is found by the device, the constants and options, the type of each tensor, and the integers that Triton specialises on. Left
    to Triton each time: tensors that are not aligned to 16 bytes (unless their alignment does not matter), and integers beyond 32 bits.
    `enabled` False leaves all to it, for whoever compares. Triton's hooks around launches (its profiler's) hear of the first ones only.
    """

    enabled = True

    def __init__(self, jit: Any) -> None:
        runtime = [param for param in jit.params if not param.is_constexpr]
        self.jit = jit
        self._binaries: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._rules = tuple((_matters(param), param.do_not_specialize) for param in runtime)
        self._constants = (None,) * (len(jit.params) - len(runtime))  # a launcher counts them and reads none
        self._in_order = jit.params[: len(runtime)] == runtime

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        active = driver.active
        device = active.get_current_device()
        key, values, odd = self._described(device, arguments, named)
        found = None if odd else self._binaries.get(key)
        if found is None or not self.enabled:
            self._through_triton(grid, arguments, named, None if odd else key)
            return
        run, function, metadata, _ = found
        x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
        run(x, y, z, active.get_current_stream(device), function, metadata, None, None, None, *values, *self._constants)

    def _described(self, device: int, arguments: Sequence[Any], named: dict[str, Any]) -> tuple[tuple[Any, ...], list[Any], int]:
        """What the binary is found by; the arguments for the launcher; and not 0 where it must not be found by that."""
        key, values, odd = [device, *named, *named.values()], [], 0
        for argument, (bits, free) in zip(arguments, self._rules, strict=False):
            kind = argument.__class__
            if kind is Tensor:
                address = argument.data_ptr()  # the launcher asks the driver about a tensor, not about a number
                odd |= address & bits
                key.append(argument.dtype)
                values.append(address)
                continue
            values.append(argument)
            if kind is int:
                odd |= argument not in _INT32
                key.append(int if free else argument)
            elif kind is TensorDescriptor:
                key += (argument.base.dtype, *argument.block_shape)
            else:
                key.append(kind)
                odd |= kind not in _BY_TYPE
        return tuple(key), values, odd

    def _through_triton(self, grid: tuple[int, ...], arguments: Sequence[Any], named: dict[str, Any], key: tuple[Any, ...] | None) -> None:
        binary = self.jit[grid](*arguments, **named)
        whole = self._in_order and len(arguments) == len(self._rules)
        if binary is not None and key is not None and whole and why_not() is None:
            # The binary itself, too: when nobody holds it, Triton unloads its code (3.9).
            self._binaries[key] = (binary.run, binary.function, binary.packed_metadata, binary)


def _matters(param: Any) -> int:
    """The bits of an address that the code for a parameter depends on."""
    return 0 if param.do_not_specialize or param.do_not_specialize_on_alignment else _UNALIGNED
