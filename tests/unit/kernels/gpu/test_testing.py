"""The judge of GPU ops: what it lets pass, and what not."""

import pytest
import torch
from pagoda_kernels.testing import TOLERANCE, assert_close

RIGHT = torch.randn(64, 48, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize(("kind", "dtype"), DTYPES.items())
def test_the_reference_in_a_dtype_is_close(kind, dtype):
    assert_close(RIGHT.to(dtype), RIGHT, kind, RIGHT.to(dtype))


@pytest.mark.parametrize("kind", TOLERANCE)
def test_the_error_of_all_is_bounded(kind):
    assert_close(RIGHT * (1 + 0.9 * TOLERANCE[kind]), RIGHT, kind)
    with pytest.raises(AssertionError, match="Frobenius"):
        assert_close(RIGHT * (1 + 1.1 * TOLERANCE[kind]), RIGHT, kind)


def test_one_wrong_element_among_many_is_seen():
    right = torch.ones(1000, 1000, dtype=torch.float64)
    out = right.clone()
    out[7, 5] = 1.5
    with pytest.raises(AssertionError, match="worst element"):
        assert_close(out, right, "bf16")


def test_twice_the_baselines_error_and_two_last_places_are_allowed():
    last = torch.finfo(torch.bfloat16).eps * float(RIGHT.abs().max())
    at = torch.zeros_like(RIGHT)
    at[3, 3] = last
    assert_close(RIGHT + 3.9 * at, RIGHT, "fp8_kv", (RIGHT + at).bfloat16())
    with pytest.raises(AssertionError, match="beside the baseline's"):
        assert_close(RIGHT + 3.9 * at, RIGHT, "fp8_kv", RIGHT.bfloat16())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_must_stand_where_the_reference_has_it(value):
    odd = RIGHT.clone()
    odd[1, 2] = value
    assert_close(odd, odd, "fp32")
    for out, right in ((odd, RIGHT), (RIGHT, odd), (odd, -odd.roll(1)), (odd.roll(1), odd)):
        with pytest.raises(AssertionError, match="not finite"):
            assert_close(out, right, "fp32")


def test_shapes_are_compared_and_nothing_is_close_to_nothing():
    with pytest.raises(AssertionError, match="shape"):
        assert_close(RIGHT[:, :1], RIGHT, "fp32")
    assert_close(RIGHT[:0], RIGHT[:0], "fp32")
    with pytest.raises(AssertionError):
        assert_close(RIGHT, RIGHT * 0, "fp32")
