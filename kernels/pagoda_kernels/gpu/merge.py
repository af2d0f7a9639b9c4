"""The second half of decode attention: what the items of long rows left becomes the rows' result. Called by `paged_attention_decode`."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from pagoda_kernels.exports import Bands, Export
from pagoda_kernels.gpu.launch import cached

MERGED_AT_ONCE = 32  # items of a row that one step of the merge loads; the next step's are in flight


@triton.jit
def _parts(
    partial, sums, first, end, head, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """What CHUNK items from `first` on left for one head: outputs [CHUNK, D] and their scales [CHUNK]; -inf from `end` on."""
    items = first + tl.arange(0, CHUNK)
    heads = items.to(tl.int64) * HEADS + head
    dims = tl.arange(0, D)
    inside = (items < end)[:, None] & (dims < HEAD_DIM)[None, :]
    parts = tl.load(partial + heads[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    return parts, tl.load(sums + heads, mask=items < end, other=-float("inf"))


@cached
@triton.jit(do_not_specialize_on_alignment=["work"])
def merge_kernel(  # noqa: ANN201 - no types on a device
    partial, sums, out, work,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program writes one head of one row that has no item (zeros) or more than one."""
    row, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, D)
    begin = tl.load(work + 1 + row)
    end = tl.load(work + 2 + row)
    if EARLY:
        gdc_wait()  # all programs: a kernel behind this one must find the other one's rows as well
    if end - begin == 1:
        return
    acc = tl.zeros([D], tl.float32)
    total = 0.0
    top = -float("inf")
    next_parts, next_scales = _parts(partial, sums, begin, end, head, HEADS, HEAD_DIM, CHUNK, D)
    for first in range(begin, end, CHUNK):
        parts, scales = next_parts, next_scales
        next_parts, next_scales = _parts(partial, sums, first + CHUNK, end, head, HEADS, HEAD_DIM, CHUNK, D)
        higher = tl.maximum(top, tl.max(scales, 0))
        weights = tl.exp2(scales - higher)
        shrink = tl.exp2(top - higher)
        acc = acc * shrink + tl.sum(parts * weights[:, None], 0)
        total = total * shrink + tl.sum(weights, 0)
        top = higher
    result = tl.where(end > begin, acc / total, 0.0)
    tl.store(out + (row.to(tl.int64) * HEADS + head) * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM)


EXPORTS = (
    Export(
        name="paged_attention_decode_merge_128",
        kernel=merge_kernel,
        signature={"partial": "*fp32", "sums": "*fp32", "out": "*bf16", "work": "*i32"},
        constants={"HEADS": 32, "HEAD_DIM": 128, "CHUNK": MERGED_AT_ONCE, "D": 128, "EARLY": False},
        options={"num_warps": 4},
        bands=Bands(registers=128),
    ),
)
