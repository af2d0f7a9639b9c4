"""Kernels of other libraries as baselines, where they can be imported: Liger's and xformers' (Triton), and FlashInfer's, which nvcc
compiles at their first call. Each function returns sides by name; what a library does not compute is not among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from gpu_trial import Errors, Side
from torch import Tensor

if TYPE_CHECKING:
    from gpu_attention import Buffers
    from gpu_sampling import Draws

_PACKAGES = {"liger": "liger_kernel", "xformers": "xformers", "flashinfer": "flashinfer"}
_WORKSPACE = 128 << 20  # bytes; what FlashInfer's examples give
Sides = dict[str, Callable[[], Side]]


def importable(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if find_spec(_PACKAGES[name]))


def rms_norm(peers: Sequence[str], hidden: Sequence[Tensor], weight: Tensor, eps: float) -> Sides:
    def liger() -> Side:
        from liger_kernel.ops.rms_norm import rms_norm_forward

        return Side([partial(rms_norm_forward, x, weight, eps, 0.0, "llama", None) for x in hidden], lambda found: found[0])

    def flashinfer() -> Side:
        from flashinfer.norm import rmsnorm

        return Side([partial(rmsnorm, x, weight, eps) for x in hidden])

    return _asked(peers, {"liger": liger, "flashinfer": flashinfer})


def silu_mul(peers: Sequence[str], gate_up: Sequence[Tensor]) -> Sides:
    def liger() -> Side:
        from liger_kernel.ops.swiglu import swiglu_forward

        halves = [[half.contiguous() for half in x.chunk(2, dim=-1)] for x in gate_up]
        return Side([partial(swiglu_forward, *both) for both in halves], lambda found: found[2])

    def flashinfer() -> Side:
        from flashinfer.activation import silu_and_mul

        return Side([partial(silu_and_mul, x) for x in gate_up])

    return _asked(peers, {"liger": liger, "flashinfer": flashinfer})


def decode(peers: Sequence[str], buffers: Buffers) -> Sides:
    """On the same pages as ours. xformers: rows of one length, without a window."""
    found: Sides = {"flashinfer": partial(_flashinfer_decode, buffers)}
    if buffers.paged.shape.even:
        found["xformers"] = partial(_xformers_decode, buffers)
    return _asked(peers, found)


def sample(peers: Sequence[str], logits: Sequence[Tensor], draws: Draws, judge: Callable[[Any], Errors]) -> Sides:
    """FlashInfer draws from probabilities; its min_p goes with no other filter."""

    def flashinfer() -> Side:
        from flashinfer import sampling

        def call(one: Tensor) -> Any:
            scaled = one / draws.temperature
            if draws.top_k and draws.top_p < 1:
                return sampling.top_k_top_p_sampling_from_logits(scaled, draws.top_k, draws.top_p)
            share = scaled.softmax(dim=-1)
            if draws.top_k:
                return sampling.top_k_sampling_from_probs(share, draws.top_k)
            return sampling.top_p_sampling_from_probs(share, draws.top_p) if draws.top_p < 1 else sampling.sampling_from_probs(share)

        return Side([partial(call, one) for one in logits], Tensor.long, judge)

    return {} if draws.min_p or not draws.temperature else _asked(peers, {"flashinfer": flashinfer})


def _asked(peers: Sequence[str], sides: Sides) -> Sides:
    return {name: make for name, make in sides.items() if name in peers}


def _flashinfer_decode(buffers: Buffers) -> Side:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper as Wrapper

    paged, shape = buffers.paged, buffers.paged.shape
    blocks = [-(-context // shape.page) for context in shape.contexts]
    starts = torch.tensor([0, *accumulate(blocks)], dtype=torch.int32)
    last = torch.tensor([(context - 1) % shape.page + 1 for context in shape.contexts], dtype=torch.int32)
    heads = (shape.heads, shape.kv_heads, shape.head_dim, shape.page)
    cache = tuple(half.view(-1, shape.page, shape.kv_heads, shape.head_dim) for half in paged.kv)
    workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=paged.kv.device)
    calls = []
    for index in range(buffers.sets.number):
        wrapper = Wrapper(workspace, "NHD", use_tensor_cores=True)
        more = {
            "window_left": -1 if shape.window is None else shape.window - 1,
            "q_data_type": paged.kv.dtype,
            "kv_data_type": paged.kv.dtype,
        }
        wrapper.plan(starts, paged.pages(index).tables, last, *heads, **more)
        calls.append(partial(wrapper.run, buffers.query, cache))
    return Side(calls)


def _xformers_decode(buffers: Buffers) -> Side:
    from xformers.ops import memory_efficient_attention_forward
    from xformers.ops.fmha import attn_bias, triton_splitk

    paged, shape = buffers.paged, buffers.paged.shape
    rows, group = len(shape.contexts), shape.heads // shape.kv_heads
    query = buffers.query.view(1, rows, shape.kv_heads, group, shape.head_dim)
    keys, values = (half[None, :, :, None].expand(-1, -1, -1, group, -1) for half in paged.kv)
    padded = -(-shape.contexts[0] // shape.page) * shape.page
    asked = attn_bias._SeqLenInfo.from_seqlens([1] * rows)  # noqa: SLF001 - the mask's own parts have no public names
    read = attn_bias._PaddedSeqLenInfo.from_seqlens_padded(list(shape.contexts), padded)  # noqa: SLF001

    def call(index: int) -> Any:
        tables = paged.pages(index).tables.view(rows, -1)
        mask = attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask(asked, read, tables, shape.page).to(query.device)
        return partial(memory_efficient_attention_forward, query, keys, values, mask, op=triton_splitk.FwOp)

    return Side([call(index) for index in range(buffers.sets.number)], lambda found: found.reshape(buffers.query.shape))
