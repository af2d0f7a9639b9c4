"""Triton's interpreter (TRITON_INTERPRET=1), made to compute and to fail as a device would. For tests on machines without a GPU.

    with HonestInterpreter():
        kernel[grid](...)

bf16, fp8 and tf32 round as on the device (rounding.py); an access that a device would not forgive raises KernelFault (memory.py). Works
with Triton 3.6 and 3.9. The environment variable has to be set before triton is first imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import triton.runtime.interpreter as upstream
from torch import Tensor
from triton.runtime.errors import InterpreterError

from pagoda_kernels.interpreter import rounding
from pagoda_kernels.interpreter.memory import Accesses, KernelFault
from pagoda_kernels.interpreter.quick import Patches
from pagoda_kernels.interpreter.rounding import Method


class HonestInterpreter:
    """A context in which the interpreter is honest. It replaces methods and functions of upstream: one at a time in a process."""

    def __init__(self) -> None:
        self._accesses, self._patches = Accesses(), Patches()
        self._originals: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        parts = (rounding.replacements(), self._accesses.replacements(), self._patches.replacements(), self._launches())
        for owner, name, make in (one for part in parts for one in part):
            original = getattr(owner, name)
            self._originals.append((owner, name, original))
            setattr(owner, name, make(original))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._originals:
            setattr(*self._originals.pop())

    def _launches(self) -> list[tuple[type, str, Callable[[Method], Method]]]:
        executor = upstream.GridExecutor
        return [(executor, "__call__", _launch), (executor, "_init_args_hst", self._arguments), (executor, "_restore_args_dev", _restore)]

    def _arguments(self, original: Method) -> Method:
        def replaced(executor: Any, args: Any, named: Any) -> Any:
            hosted, hosted_named = original(executor, args, named)
            self._accesses.begin(_tensors([*hosted, *hosted_named.values()]))
            self._patches.begin()
            return hosted, hosted_named

        return replaced


def _launch(original: Method) -> Method:
    """NaN and infinities are no error on a device, and a fault comes out as what it is."""

    def replaced(executor: Any, *args: Any, **named: Any) -> None:
        try:
            with np.errstate(all="ignore"):
                original(executor, *args, **named)
        except InterpreterError as error:
            if fault := _fault(error):
                raise fault from None
            raise

    return replaced


def _fault(error: BaseException | None) -> KernelFault | None:
    while error is not None and not isinstance(error, KernelFault):
        error = error.__cause__
    return error


def _restore(original: Method) -> Method:
    """Upstream copies each storage back onto itself, which gives memory to all of one that a test never touched."""

    def replaced(executor: Any, args: Any, hosted: Any, named: Any, hosted_named: Any) -> None:
        if any(tensor.device.type != "cpu" for tensor in _tensors([*args, *named.values()])):
            original(executor, args, hosted, named, hosted_named)

    return replaced


def _tensors(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among `arguments`, in tuples and under descriptors."""
    for one in arguments:
        if isinstance(one, tuple | list):
            yield from _tensors(one)
        elif hasattr(one, "block_shape"):
            yield from _tensors([one.base])
        elif hasattr(one, "data_ptr"):
            yield upstream._unwrap_tensor(one)  # noqa: SLF001
