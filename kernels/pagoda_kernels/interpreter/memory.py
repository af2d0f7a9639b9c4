"""What a kernel touches, checked at every access: the interpreter runs programs one after another and reads whatever lies at an address.

`Accesses` knows the tensors of one launch. A fault is an address outside of every one of them (gaps of a strided view are outside), one
address written twice by one store, and what programs do to one another without an atomic: on a device they run in any order.
Programs that change the same address by atomics are in order: a later one may touch what an earlier one did before that.
Lanes that a mask turns off without `other` read NaN, since the device promises nothing about them.

Not modelled: faults within one program, atomics of a weaker order than the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import triton.runtime.interpreter as upstream
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime.interpreter import TensorHandle

from pagoda_kernels.interpreter.rounding import Method, is_small, rounded

_MANY: Final = -1
_ATOMIC: Final = -2


class KernelFault(Exception):
    """A kernel touches what it may not: the message says which access and which program."""


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    """Of each `unit` bytes from `base` on: 1 + the program that wrote it, that read it; 0: none. Zeros take no memory until touched."""

    base: int
    unit: int
    writer: NDArray[np.int32]
    reader: NDArray[np.int32]

    @classmethod
    def of(cls, tensors: list[Tensor]) -> _Storage:
        memory, unit = tensors[0].untyped_storage(), min(tensor.element_size() for tensor in tensors)
        count = memory.nbytes() // unit + 1
        return cls(memory.data_ptr(), unit, np.zeros(count, np.int32), np.zeros(count, np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """The bytes of one argument. `gaps`: (size, stride) of its dimensions, largest stride first; empty where the span has no gap."""

    storage: _Storage
    low: int
    high: int
    item: int
    gaps: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, tensor: Tensor, storage: _Storage) -> _View:
        dims = sorted(
            ((size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and step > 0),
            key=lambda dim: -dim[1],
        )
        span = 1 + sum((size - 1) * step for size, step in dims) if tensor.numel() else 0
        has_gaps = _nested(dims) and span > np.prod([size for size, _ in dims], dtype=np.int64)
        low, item = tensor.data_ptr(), tensor.element_size()
        return cls(storage, low, low + span * item, item, tuple(dims) if has_gaps else ())

    def holds(self, addresses: NDArray[np.int64], size: int) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = (addresses >= self.low) & (addresses + size <= self.high)
        rest = (addresses - self.low) // self.item
        for count, step in self.gaps:
            inside &= rest // step < count
            rest %= step
        if self.gaps:
            inside &= rest == 0
        return inside


def _nested(dims: list[tuple[int, int]]) -> bool:
    """Whether no two indices are the same element: each stride is longer than what lies within it."""
    extent = 1
    for size, step in reversed(dims):
        if step < extent:
            return False
        extent = (size - 1) * step + extent
    return True


class Accesses:
    """The checks of one launch after another. One instance per installed interpreter."""

    def __init__(self) -> None:
        self._views: list[_View] = []
        self._before: dict[int, frozenset[int]] = {}  # by program: those whose work it may rely on
        self._passed: dict[tuple[int, int], frozenset[int]] = {}  # by address of an atomic: what those knew that changed it

    def begin(self, arguments: Iterator[Tensor]) -> None:
        """A launch over the tensors `arguments`: nothing has been touched."""
        by_storage: dict[int, list[Tensor]] = {}
        for tensor in arguments:
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        self._views, self._before, self._passed = [], {}, {}
        for tensors in by_storage.values():
            storage = _Storage.of(tensors)
            self._views += [_View.of(tensor, storage) for tensor in tensors]

    def read(self, pointers: TensorHandle, mask: TensorHandle) -> None:
        for storage, at in self._touched(pointers, mask, "load"):
            _refuse("load", "wrote", storage.writer[at], self._earlier())
            me, seen = _program(), storage.reader[at]
            storage.reader[at] = np.where((seen == 0) | (seen == me), me, _MANY)

    def write(self, pointers: TensorHandle, mask: TensorHandle) -> None:
        for storage, at in self._touched(pointers, mask, "store"):
            if (np.diff(np.sort(at)) == 0).any():
                raise KernelFault(f"store: program {_program() - 1} writes one address twice in one operation")
            _refuse("store", "wrote", storage.writer[at], self._earlier())
            _refuse("store", "read", storage.reader[at], self._earlier())
            storage.writer[at] = _program()

    def change(self, pointers: TensorHandle, mask: TensorHandle) -> None:
        for storage, at in self._touched(pointers, mask, "atomic"):
            _refuse("atomic", "wrote", storage.writer[at], self._earlier() | {_ATOMIC})
            _refuse("atomic", "read", storage.reader[at], self._earlier())
            storage.writer[at] = _ATOMIC
            for address in at.tolist():
                place = storage.base, address
                known = self._earlier() | self._passed.get(place, frozenset())
                self._before[_program()] = known
                self._passed[place] = known | {_program()}

    def _earlier(self) -> frozenset[int]:
        """The programs whose accesses come before those of the one that runs."""
        return self._before.get(_program(), frozenset())

    def _touched(self, pointers: TensorHandle, mask: TensorHandle, what: str) -> Iterator[tuple[_Storage, NDArray[np.int64]]]:
        """The storages that the lanes touch which `mask` leaves on, and where. A lane belongs to the first argument that holds it."""
        size = upstream._get_np_dtype(pointers.get_element_ty()).itemsize  # noqa: SLF001
        shape = np.shape(pointers.data)
        addresses = np.asarray(pointers.data).astype(np.int64)[np.broadcast_to(np.asarray(mask.data, dtype=bool), shape)]
        for view in self._views:
            if addresses.size == 0:
                return
            inside = view.holds(addresses, size)
            if inside.any():
                yield view.storage, (addresses[inside] - view.storage.base) // view.storage.unit
                addresses = addresses[~inside]
        if addresses.size:
            raise KernelFault(
                f"{what} out of bounds in program {_program() - 1}: {addresses.size} lanes, first at {self._nearest(int(addresses[0]))}"
            )

    def _nearest(self, address: int) -> str:
        if not self._views:
            return hex(address)
        view = min(self._views, key=lambda one: max(one.low - address, address - one.high))
        return f"{address - view.low} bytes from the start of the argument of {view.high - view.low} bytes nearest to it"

    def replacements(self) -> list[tuple[type, str, Callable[[Method], Method]]]:
        """(class, method, what makes the new method of the old one)."""
        builder = upstream.InterpreterBuilder
        return [
            (builder, "create_masked_load", self._load),
            (builder, "create_masked_store", self._store),
            (builder, "create_atomic_rmw", self._atomic),
            (builder, "create_atomic_cas", self._compare_and_swap),
        ]

    def _load(self, original: Method) -> Method:
        def replaced(builder: Any, pointers: TensorHandle, mask: TensorHandle, other: TensorHandle | None, *rest: Any, **named: Any) -> Any:
            self.read(pointers, mask)
            return original(builder, pointers, mask, _unknown(pointers) if other is None else other, *rest, **named)

        return replaced

    def _store(self, original: Method) -> Method:
        def replaced(builder: Any, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *rest: Any, **named: Any) -> Any:
            self.write(pointers, mask)
            return original(builder, pointers, value, mask, *rest, **named)

        return replaced

    def _atomic(self, original: Method) -> Method:
        def replaced(builder: Any, op: Any, pointers: TensorHandle, value: TensorHandle, mask: TensorHandle, *rest: Any) -> Any:
            self.change(pointers, mask)
            return original(builder, op, pointers, value, mask, *rest)

        return replaced

    def _compare_and_swap(self, original: Method) -> Method:
        def replaced(builder: Any, pointers: TensorHandle, *rest: Any) -> Any:
            self.change(pointers, TensorHandle(np.ones_like(pointers.data, dtype=bool), upstream.tl.int1))
            return original(builder, pointers, *rest)

        return replaced


def _program() -> int:
    """1 + the number of the program that runs."""
    builder = upstream.interpreter_builder
    x, y, z = builder.grid_idx
    return int(1 + x + builder.grid_dim[0] * (y + builder.grid_dim[1] * z))


def _refuse(what: str, did: str, by: NDArray[np.int32], allowed: frozenset[int]) -> None:
    """KernelFault where `by` names another program than this one."""
    me = _program()
    bad = (by != 0) & (by != me)
    if allowed and bad.any():
        bad &= ~np.isin(by, [*allowed])
    if bad.any():
        first = int(by[bad][0])
        who = {_MANY: "several programs", _ATOMIC: "an atomic"}.get(first, f"program {first - 1}")
        raise KernelFault(f"{what}: program {me - 1} touches what {who} {did} in the same launch")


def _unknown(pointers: TensorHandle) -> TensorHandle | None:
    """NaN in the shape of `pointers`; None (zeros) where they point to integers."""
    dtype = pointers.get_element_ty()
    if not dtype.is_floating():
        return None
    nan = np.full(np.shape(pointers.data), np.nan, np.float32)
    return TensorHandle(rounded(nan, dtype) if is_small(dtype) else nan.astype(upstream._get_np_dtype(dtype)), dtype)  # noqa: SLF001
