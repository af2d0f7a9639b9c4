"""What `gpu.rope_kv_write` computes, in plain torch: in float64, or with the roundings of a dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from pagoda_kernels.reference.rms_norm import rms_norm


def rope_kv_write(
    qkv: Tensor,
    turn: tuple[Tensor, Tensor, Tensor],
    sizes: tuple[int, int, int],
    norms: tuple[Tensor, Tensor, float] | None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [tokens, heads, head_dim], keys and values [tokens, kv_heads, head_dim] of `qkv`; what the cache holds is the caller's.

    `turn` is the tables of cosines and sines and the positions; `sizes` heads, kv_heads and head_dim; `norms` the weights of queries and
    keys, and eps.
    """
    heads, kv_heads, head_dim = sizes
    query, key, value = torch.split(qkv.to(dtype).view(len(qkv), -1, head_dim), [heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        query, key = rms_norm(query, norms[0], norms[2], dtype), rms_norm(key, norms[1], norms[2], dtype)
    cos, sin = (table.to(dtype)[turn[2].long()][:, None] for table in turn[:2])
    return _rotated(query, cos, sin), _rotated(key, cos, sin), value


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cos + torch.cat((-second, first), dim=-1) * sin
