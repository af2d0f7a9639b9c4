"""What Triton's interpreter does in vain, left out. No result changes. A third of the time of our tests was this.

Upstream puts its own functions into `triton.language` at each call of a device function, although the launch around it has done so and
undoes it only at its end. For each numpy dtype that it looks up, it makes the whole table of them. Without the option `debug`, which it
never sets, it computes whether each sum, difference and product of integers overflows, and then does not look at the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as upstream
from triton.language.semantic import TritonSemantic

from pagoda_kernels.interpreter.rounding import Method


class Patches:
    """Which modules the launch that runs has patched. One instance per installed interpreter."""

    def __init__(self) -> None:
        self._patched: set[tuple[int, int]] = set()

    def begin(self) -> None:
        """A launch: nothing has been patched."""
        self._patched.clear()

    def _patch(self, original: Method) -> Method:
        def replaced(function: Any) -> Any:
            names = function.__globals__
            place = id(names), len(names)  # the modules are found by their names, and a rewritten function brings more of these
            if place in self._patched:
                return _Nothing
            self._patched.add(place)
            return original(function)

        return replaced

    def replacements(self) -> list[tuple[Any, str, Callable[[Method], Method]]]:
        """(module or class, function, what makes the new function of the old one)."""
        return [
            (upstream, "_patch_lang", self._patch),
            (upstream, "_get_np_dtype", _np_dtype),
            (TritonSemantic, "binary_op_sanitize_overflow_impl", _overflow),
        ]


class _Nothing:
    """The patches of a call that made none."""

    @staticmethod
    def restore() -> None:
        """There is nothing to undo: the launch undoes its own."""


def _overflow(original: Method) -> Method:
    def replaced(semantic: Any, *operands: Any) -> None:
        if semantic.builder.options.debug:
            original(semantic, *operands)

    return replaced


def _np_dtype(original: Method) -> Method:
    known: dict[str, Any] = {}

    def replaced(dtype: Any) -> Any:
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(element, tl.pointer_type):
            return np.dtype(np.uint64)
        if (found := known.get(element.name)) is None:
            found = known[element.name] = original(element)
        return found

    return replaced
