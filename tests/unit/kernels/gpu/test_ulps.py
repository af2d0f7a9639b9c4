"""The distance in which tests of roundings are stated."""

import pytest
import torch
from pagoda_kernels.reference.ulps import ulps_apart


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_next_to_each_other_are_one_apart_also_across_zero(dtype):
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    left = torch.tensor([1.0, -1.0, 1.0, smallest, 0.0, torch.nan, torch.inf], dtype=dtype)
    eps = torch.finfo(dtype).eps
    right = torch.tensor([1 + eps, -1 - 2 * eps, 1 - eps / 2, -smallest, -0.0, torch.nan, torch.finfo(dtype).max], dtype=dtype)
    assert ulps_apart(left, right).tolist() == [1, 2, 1, 2, 0, 0, 1]
    assert ulps_apart(right, left).tolist() == [1, 2, 1, 2, 0, 0, 1]
    assert ulps_apart(left, -left)[5] == 0  # a NaN's sign


@pytest.mark.parametrize("other", [torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16)])
def test_tensors_that_do_not_compare_are_refused(other):
    with pytest.raises(ValueError, match="beside"):
        ulps_apart(torch.zeros(2), other)
