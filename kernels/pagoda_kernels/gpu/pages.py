"""Where the tokens of each row lie in the KV cache. Shared by the attention kernels for decode and for prefill."""

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_SIZES = (16, 32, 64)


@dataclass(frozen=True, slots=True)
class Pages:
    """The block tables and lengths of the rows of one batch, on the device.

    tables: int32 [n], all block ids, row after row, in the order of the tokens.
    table_starts: int32 [rows], row r's block ids begin at tables[table_starts[r]].
    lengths: int32 [rows], tokens in the row's context, those of this step included; 0 is a padding row.
    block_size: tokens per block; token t of a row lies in slot id * block_size + t % block_size, id = its block t // block_size.
    """

    tables: Tensor
    table_starts: Tensor
    lengths: Tensor
    block_size: int

    def __post_init__(self) -> None:
        """Refuse what no kernel accepts. Looks at types and shapes only: the values stay on the device."""
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size must be one of {BLOCK_SIZES}, got {self.block_size}")
        for name in ("tables", "table_starts", "lengths"):
            tensor = getattr(self, name)
            if tensor.dtype != torch.int32 or tensor.ndim != 1 or not tensor.is_contiguous():
                raise ValueError(f"{name} must be a contiguous int32 vector, got {tensor.dtype} {list(tensor.shape)}")
        if self.table_starts.shape != self.lengths.shape:
            raise ValueError(f"table_starts has {len(self.table_starts)} rows, lengths {len(self.lengths)}")

    @property
    def rows(self) -> int:
        """Rows of the batch, padding rows included."""
        return len(self.lengths)
