"""Whether two tensors are close, as torch.testing judges it."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close(out: Tensor, right: Tensor, *, rtol: float, atol: float, equal_nan: bool = False) -> None:
    """As `torch.testing.assert_close`, which imports torch.distributed and sympy to ask for a type: 3 s of CPU in a fresh clone."""
    assert (out.dtype, out.shape, out.device) == (right.dtype, right.shape, right.device)
    assert torch.allclose(out, right, rtol=rtol, atol=atol, equal_nan=equal_nan), f"{out} is not {right}"
