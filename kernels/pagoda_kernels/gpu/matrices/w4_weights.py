"""Weights of 4 bits as linear_w4a16 reads them, and how they come from other layouts: bf16, AWQ, GPTQ. Pure torch, on any device.

A weight is (q - zero) * scale, q and zero of 0..15, one scale and one zero for each GROUP inputs of an output. Blocks of 64 outputs x 128
inputs are 4 KiB each: a thread's 16 bytes hold what it feeds to the tensor cores, so that unpacking moves nothing between threads. A word
of 32 bits holds two outputs (n, n + 8) x four inputs (k, k + 1, k + 8, k + 9); its halves are neighbours, since two bf16 fill a register.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

GROUP: Final = 128
SLAB: Final = 64
MIDDLE: Final = 8
_MOST: Final = 15
_PART: Final = 2048  # outputs that are quantised at once: float32 and indices take seven times their bytes in bf16


@dataclass(frozen=True, slots=True)
class Weights4:
    """One matrix. packed: int32 [slabs, groups, 1024]. scales: [slabs, groups, 64]. zeros: uint8 of the same shape; None: all are 8.

    slabs: of 64 outputs, an even number; groups: of 128 inputs. Scales behind `outputs` are 0, levels behind `inputs` are not used.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    outputs: int
    inputs: int

    @property
    def nbytes(self) -> int:
        """What a product reads of it."""
        return sum(one.nbytes for one in (self.packed, self.scales, self.zeros) if one is not None)

    def of_outputs(self, first: int, end: int) -> Weights4:
        """The weights of some outputs, in the same memory. `first`: a multiple of 128, and so is `end`, or it is not below `outputs`."""
        slabs = slice(first // SLAB, -(-end // SLAB))
        zeros = None if self.zeros is None else self.zeros[slabs]
        return Weights4(self.packed[slabs], self.scales[slabs], zeros, min(end, self.outputs) - first, self.inputs)


def w4_bytes(outputs: int, inputs: int, *, zeros: bool = False) -> int:
    """Of the weights of a matrix, with scales of two bytes. `zeros`: they are not symmetric."""
    return -(-outputs // (2 * SLAB)) * 2 * SLAB * -(-inputs // GROUP) * (GROUP // 2 + 2 + int(zeros))


def packed_w4(levels: Tensor, scales: Tensor, zeros: Tensor | None) -> Weights4:
    """Return the weights of `levels` [outputs, inputs], 0..15, with `scales` and `zeros` [outputs, groups]."""
    outputs, inputs = levels.shape
    groups = -(-inputs // GROUP)
    if scales.shape != (outputs, groups) or (zeros is not None and zeros.shape != scales.shape):
        raise ValueError(
            f"scales and zeros must have the shape {(outputs, groups)}, one for each {GROUP} inputs, got {tuple(scales.shape)}"
        )
    more = -outputs % (2 * SLAB)
    slabs = pad(levels.to(torch.uint8), (0, groups * GROUP - inputs, 0, more)).view(-1, 4, 2, 8, groups, 2, 4, 2, 4, 2)
    # [slab, group, input 6, outputs 4-5, outputs 0-2, inputs 1-2, inputs 4-5, input 0, input 3, output 3]; the last three lie in a word
    nibbles = slabs.permute(0, 4, 5, 1, 3, 8, 6, 9, 7, 2).flatten(7)
    packed = torch.zeros(nibbles.shape[:-1], dtype=torch.int32, device=levels.device)
    for place in range(8):
        packed |= nibbles[..., place].int() << (16 * (place // 4) + 4 * (place % 4))
    kept = None if zeros is None or bool((zeros == MIDDLE).all()) else _by_slab(pad(zeros.to(torch.uint8), (0, 0, 0, more)))
    return Weights4(packed.view(-1, groups, SLAB * GROUP // 8), _by_slab(pad(scales, (0, 0, 0, more))), kept, outputs, inputs)


def _by_slab(numbers: Tensor) -> Tensor:
    """[slabs, groups, 64] of [outputs, groups]."""
    return numbers.view(-1, SLAB, numbers.shape[1]).transpose(1, 2).contiguous()


def quantised_w4(weight: Tensor) -> Weights4:
    """Round `weight` [outputs, inputs] to the nearest of 16 levels, symmetric: the value of a group furthest from 0 becomes -8 scales."""
    parts = [_quantised(part) for part in weight.split(_PART)]
    packed, scales = (torch.cat([getattr(part, name) for part in parts]) for name in ("packed", "scales"))
    return Weights4(packed, scales, None, *weight.shape)


def _quantised(weight: Tensor) -> Weights4:
    outputs, inputs = weight.shape
    grouped = pad(weight.float(), (0, -inputs % GROUP)).view(outputs, -1, GROUP)
    furthest = grouped.gather(2, grouped.abs().argmax(2, keepdim=True))
    scales = (furthest / -MIDDLE).to(weight.dtype if weight.dtype.itemsize == 2 else torch.bfloat16)
    steps = scales.float().where(scales != 0, torch.ones_like(furthest))
    levels = (grouped / steps).round_().add_(MIDDLE).clamp_(0, _MOST).to(torch.uint8)
    return packed_w4(levels.view(outputs, -1)[:, :inputs], scales[..., 0], None)


def awq_levels(qweight: Tensor, qzeros: Tensor) -> tuple[Tensor, Tensor]:
    """Return levels [outputs, inputs] and zeros [outputs, groups] of AWQ's int32 [inputs, outputs / 8] and [groups, outputs / 8]."""
    levels, zeros = (_columns(words, awq=True) for words in (qweight, qzeros))
    return levels.T, zeros.T


def gptq_levels(qweight: Tensor, qzeros: Tensor, *, one_less: bool) -> tuple[Tensor, Tensor]:
    """Return the same of GPTQ's int32 [inputs / 8, outputs] and [groups, outputs / 8].

    one_less: qzeros hold the zeros minus 1, as all but the format "gptq_v2" do; of a zero of 0, 15 then, as AutoGPTQ reads it."""
    levels = _columns(qweight.T)
    return levels, _columns(qzeros).T[: len(levels)] + int(one_less) & _MOST


def of_groups(numbers: Tensor, inputs: int) -> Tensor:
    """Return [outputs, groups of 128] of [outputs, groups]. Longer groups are several of 128; ValueError for shorter ones."""
    size = -(-inputs // numbers.shape[1])
    if size % GROUP and numbers.shape[1] > 1:
        raise ValueError(f"the group size must be {GROUP} or a multiple of it, got {size}")
    return numbers.repeat_interleave(-(-size // GROUP), dim=1)[:, : -(-inputs // GROUP)].contiguous()


def _columns(words: Tensor, *, awq: bool = False) -> Tensor:
    """uint8 [rows, 8 * columns] of int32 `words` [rows, columns]. Nibble i is a column i; of AWQ, a column 2 * (i % 4) + i // 4.

    By bytes, of which torch takes four times as many at once as words."""
    pairs = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    nibbles = torch.stack((pairs & _MOST, pairs >> 4), dim=-1)
    return nibbles.view(*words.shape, 2, 4).transpose(-1, -2).flatten(1) if awq else nibbles.flatten(1)
