"""What `gpu.copy_blocks` does, in plain torch."""

from __future__ import annotations

from torch import Tensor


def copy_blocks(kv_all: Tensor, pairs: Tensor, block_size: int) -> Tensor:
    """`kv_all` [layers, 2, slots, kv_heads, head_dim] after every block `pairs[i, 0]`, as it was, has replaced block `pairs[i, 1]`."""
    result = kv_all.clone()
    for source, destination in pairs.tolist():
        begins = source * block_size, destination * block_size
        result[:, :, begins[1] : begins[1] + block_size] = kv_all[:, :, begins[0] : begins[0] + block_size]
    return result
