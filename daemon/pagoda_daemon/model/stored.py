"""Matrices as quantised checkpoints store them, and the numbers that they stand for. Called by `model.sources`, which reads their parts.

A matrix is on the host, in as few bytes as in the file. `rows` gives some of its outputs as float32: the caller rounds them once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from pagoda_kernels.gpu.matrices.w4_weights import awq_levels, gptq_levels
from torch import Tensor

_AT_ONCE: Final = 4 * 2**20  # numbers that are float32 at the same time: 16 MiB
_WORD: Final = 8  # outputs or inputs of a word of 32 bits


@dataclass(frozen=True, slots=True)
class Stored8:
    """levels [outputs, inputs] in float8_e4m3fn or int8. scales float32 [outputs, 1], or one per `block` of outputs x inputs."""

    levels: Tensor
    scales: Tensor
    block: tuple[int, int] | None

    @property
    def shape(self) -> tuple[int, int]:
        return self.levels.shape[0], self.levels.shape[1]

    def rows(self, first: int, end: int, place: torch.device) -> Tensor:
        """Of the outputs `first` to `end`: levels times scales, float32 on `place`."""
        numbers = self.levels[first:end].to(place).float()
        if self.block is None:
            return numbers.mul_(self.scales[first:end].to(place))
        high, wide = self.block
        wide = min(wide, self.shape[1])  # a block may be longer than its matrix
        scales = self.scales[torch.arange(first, end) // high].repeat_interleave(wide, dim=1)[:, : self.shape[1]]
        return numbers.mul_(scales.to(place))


@dataclass(frozen=True, slots=True)
class Stored4:
    """Words of 8 levels. qweight int32 [inputs, outputs / 8] (`awq`) or [inputs / 8, outputs], qzeros int32 [groups, outputs / 8].

    scales [groups, outputs]; each is for `group` inputs. `one_less`: zeros are stored minus 1.
    """

    qweight: Tensor
    qzeros: Tensor
    scales: Tensor
    group: int
    awq: bool
    one_less: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.scales.shape[1], self.qweight.shape[0] * (1 if self.awq else _WORD)

    def parts(self, first: int, end: int, place: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Of the outputs `first` to `end`, `first` a multiple of 8: levels [outputs, inputs] and zeros [outputs, groups] in uint8, and
        scales [outputs, groups]; on `place`."""
        words = slice(first // _WORD, -(-end // _WORD))
        qweight, qzeros = self.qweight[:, words if self.awq else slice(first, end)].to(place), self.qzeros[:, words].to(place)
        levels, zeros = awq_levels(qweight, qzeros) if self.awq else gptq_levels(qweight, qzeros, one_less=self.one_less)
        return levels, zeros, self.scales[:, first:end].T.to(place)

    def rows(self, first: int, end: int, place: torch.device) -> Tensor:
        """Of the same outputs: (level - zero) * scale, float32 on `place`."""
        levels, zeros, scales = self.parts(first, end, place)
        outputs, inputs = levels.shape
        if inputs % self.group == 0:
            numbers = levels.contiguous().view(outputs, -1, self.group).float()
            return numbers.sub_(zeros.float()[:, :, None]).mul_(scales.float()[:, :, None]).view(outputs, inputs)
        group = min(self.group, inputs)
        wide_zeros, wide_scales = (one.float().repeat_interleave(group, dim=1)[:, :inputs] for one in (zeros, scales))
        return levels.float().sub_(wide_zeros).mul_(wide_scales)


StoredMatrix = Stored8 | Stored4


def fill(place: Tensor, matrix: StoredMatrix) -> None:
    """Write the numbers of a matrix into `place` [outputs, inputs], a few outputs at a time, rounded once."""
    step = max(_WORD, _AT_ONCE // place.shape[1] // _WORD * _WORD)
    for first in range(0, place.shape[0], step):
        end = min(first + step, place.shape[0])
        place[first:end] = matrix.rows(first, end, place.device)
