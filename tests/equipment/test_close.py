"""`judges/close.py` tells apart what torch.testing tells apart."""

import pytest
import torch
from support.judges.close import assert_close

ONE = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    "other",
    [ONE + 1e-3, ONE.double(), ONE[:1], torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.inf])],
    ids=["value", "dtype", "shape", "nan", "inf"],
)
def test_what_differs_is_said(other):
    assert_close(ONE, ONE.clone(), rtol=0, atol=0)
    with pytest.raises(AssertionError):
        assert_close(other, ONE, rtol=1e-4, atol=1e-4)
