"""Descriptors of keys and values, of which a copy takes whole blocks (TMA). Made by `paged_attention_prefill`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


def described(keys: Tensor, tokens: int) -> TensorDescriptor:
    """`keys` [slots, kv_heads, head_dim], of which a copy takes `tokens` slots of one head."""
    if keys.is_cuda:
        return _blocks_at(_Place(keys.data_ptr(), keys.dtype), keys.shape, tokens)
    return _described(keys, keys.shape, tokens)


@dataclass(frozen=True, slots=True)
class _Place:
    """What a descriptor asks of a tensor. It holds no memory, so that descriptors may be kept."""

    address: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.address


@lru_cache(maxsize=1024)  # keys and values of 512 layers
def _blocks_at(place: _Place, shape: torch.Size, tokens: int) -> TensorDescriptor:
    """Kept, because to make one takes longer than to launch what reads it."""
    return _described(place, shape, tokens)


def _described(base: Tensor | _Place, shape: torch.Size, tokens: int) -> TensorDescriptor:
    slots, kv_heads, head_dim = shape
    width = kv_heads * head_dim
    return TensorDescriptor(base, [slots, width], [width, 1], [tokens, head_dim])
