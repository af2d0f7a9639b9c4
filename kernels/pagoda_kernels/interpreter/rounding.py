"""bf16, fp8 and tf32 as the device computes them, in Triton's interpreter, which keeps them as bits and calculates with those.

Each function takes the interpreter's own method and returns the one in its place. An operation on bf16 or fp8 is done in float32 and
rounded to nearest even, as torch does; fp8 saturates (PTX cvt.rn.satfinite). A product of float32 matrices loses the bits that tf32 has
not, unless the kernel asks for `input_precision="ieee"`.

Not modelled: the order of a sum, roundings inside a reduction of bf16, the short accumulator of fp8's wgmma, exp2.approx.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as upstream
from numpy.typing import NDArray
from triton.runtime.interpreter import TensorHandle

Method = Callable[..., Any]

_SMALL: Final = {tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
_LARGEST: Final = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
_TF32: Final = np.uint32(0xFFFFE000)


def widened(handle: TensorHandle) -> NDArray[Any]:
    """The values of a bf16 or fp8 handle as float32; another handle's as they are."""
    if not is_small(handle.dtype):
        return np.asarray(handle.data)
    bits = np.ascontiguousarray(handle.data)
    signed = bits.view(np.int16 if bits.dtype.itemsize == 2 else np.uint8)
    wide: NDArray[np.float32] = torch.from_numpy(signed).view(_SMALL[handle.dtype.scalar]).float().numpy()
    return wide.reshape(np.shape(handle.data))


def rounded(values: NDArray[Any], dtype: tl.dtype) -> NDArray[Any]:
    """The bits of `values` in bf16 or fp8, in the type in which the interpreter holds them."""
    wide = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    if dtype in _LARGEST:
        wide = wide.clamp(-_LARGEST[dtype], _LARGEST[dtype])
    narrow = wide.to(_SMALL[dtype])
    signed = narrow.view(torch.int16 if narrow.itemsize == 2 else torch.uint8).numpy()
    bits: NDArray[Any] = signed.view(upstream._get_np_dtype(dtype))  # noqa: SLF001  a module that has no interface
    return bits.reshape(np.shape(values))


def is_small(dtype: tl.dtype) -> bool:
    return dtype.scalar in _SMALL


def _handle(values: NDArray[Any], dtype: tl.dtype) -> TensorHandle:
    if is_small(dtype):
        return TensorHandle(rounded(values, dtype.scalar), dtype.scalar)
    return TensorHandle(values.astype(upstream._get_np_dtype(dtype.scalar)), dtype.scalar)  # noqa: SLF001


def binary_op(original: Method) -> Method:
    def replaced(builder: Any, left: TensorHandle, right: TensorHandle, op: Method) -> TensorHandle:
        if not is_small(left.dtype):
            return original(builder, left, right, op)
        out = op(widened(left), widened(right))
        return TensorHandle(out, tl.int1) if out.dtype == np.bool_ else _handle(out, left.dtype)

    return replaced


def unary_op(original: Method) -> Method:
    def replaced(builder: Any, value: TensorHandle, op: Method) -> TensorHandle:
        return _handle(op(widened(value)), value.dtype) if is_small(value.dtype) else original(builder, value, op)

    return replaced


def ternary_op(original: Method) -> Method:
    """A selection of bits is right as it is; a clamp is not."""

    def replaced(builder: Any, first: TensorHandle, second: TensorHandle, third: TensorHandle, op: Method) -> TensorHandle:
        if op is np.where or not is_small(third.dtype):
            return original(builder, first, second, third, op)
        return _handle(op(widened(first), widened(second), widened(third)), third.dtype)

    return replaced


def fused_multiply_add(original: Method) -> Method:
    def replaced(builder: Any, x: TensorHandle, y: TensorHandle, z: TensorHandle) -> TensorHandle:
        if not is_small(z.dtype):
            return original(builder, x, y, z)
        exact = widened(x).astype(np.float64) * widened(y) + widened(z)
        return _handle(exact.astype(np.float32), z.dtype)

    return replaced


def cast(original: Method) -> Method:
    def replaced(builder: Any, source: TensorHandle, target: tl.dtype) -> TensorHandle:
        if is_small(source.dtype) or is_small(target):
            return _handle(widened(source), target)
        return original(builder, source, target)

    return replaced


def float_to_float(original: Method) -> Method:
    def replaced(builder: Any, source: TensorHandle, target: tl.dtype, mode: Any) -> TensorHandle:
        if is_small(source.dtype) or is_small(target):
            return _handle(widened(source), target)
        return original(builder, source, target, mode)

    return replaced


def dot(original: Method) -> Method:
    """Summed in float64 and rounded once. In float32, a row's bits depend on its place in the tile where OpenBLAS has AVX2 only, which they
    do not on a device."""

    def replaced(builder: Any, a: TensorHandle, b: TensorHandle, total: TensorHandle, precision: Any, imprecise: Any) -> TensorHandle:
        if a.dtype.scalar.is_int() or total.dtype.scalar == tl.float64:
            return original(builder, a, b, total, precision, imprecise)
        if a.dtype.scalar == tl.float32 and precision == upstream._ir.INPUT_PRECISION.TF32:  # noqa: SLF001
            a, b = _tf32(a), _tf32(b)
        product = np.matmul(widened(a).astype(np.float64), widened(b).astype(np.float64)).astype(np.float32)
        return _handle(product + widened(total), total.dtype)

    return replaced


def _tf32(handle: TensorHandle) -> TensorHandle:
    return TensorHandle((np.ascontiguousarray(handle.data).view(np.uint32) & _TF32).view(np.float32), handle.dtype)


def reduction(original: Method) -> Method:
    """Of reductions and scans alike: over float32, and the result rounded."""

    def replaced(ops: Any, inputs: Sequence[Any]) -> list[Any]:
        wide = tuple(ops.to_tensor(widened(one.handle), tl.float32) if is_small(one.dtype) else one for one in inputs)
        out = original(ops, wide)
        outs = out if isinstance(out, list | tuple) else [out]
        return [_narrowed(one, given.dtype) for one, given in zip(outs, inputs, strict=False)]

    return replaced


def _narrowed(out: Any, dtype: tl.dtype) -> Any:
    """`out` in the dtype of its input, where that is bf16 or fp8: an index stays what it is."""
    if not is_small(dtype):
        return out
    return type(out)(_handle(out.handle.data, dtype), tl.block_type(dtype, list(out.shape)) if out.shape else dtype)


def replacements() -> list[tuple[type, str, Callable[[Method], Method]]]:
    """(class, method, what makes the new method of the old one)."""
    builder = upstream.InterpreterBuilder
    return [
        (builder, "binary_op", binary_op),
        (builder, "unary_op", unary_op),
        (builder, "ternary_op", ternary_op),
        (builder, "create_fma", fused_multiply_add),
        (builder, "cast_impl", cast),
        (builder, "create_fp_to_fp", float_to_float),
        (builder, "create_dot", dot),
        (upstream.ReduceOps, "apply_impl", reduction),
        (upstream.ScanOps, "apply_impl", reduction),
    ]
