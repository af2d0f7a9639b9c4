"""The gate of an MLP beside float64 and beside the roundings of the daemon's torch ops."""

import numpy as np
import pytest
import torch
from pagoda_kernels.gpu.quantise_rows import quantise_rows
from pagoda_kernels.gpu.silu_mul import silu_mul, silu_mul_levels
from pagoda_kernels.reference.silu_mul import silu_mul as judged
from pagoda_kernels.reference.ulps import ulps_apart
from pagoda_kernels.testing import KIND_OF, assert_close, device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (3, 64), (5, 33), (2, 1024), (3, 1030), (1, 3072), (0, 64)]


def gate_up(tokens, width, dtype):
    """Behind the last row the storage is NaN."""
    storage = torch.full((tokens * 2 * width + 4096,), torch.nan)
    storage[: tokens * 2 * width] = torch.randn(tokens * 2 * width, generator=torch.Generator().manual_seed(0)) * 3
    return storage.to(dtype).to(device())[: tokens * 2 * width].view(tokens, 2 * width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_half_gates_the_second(shape, dtype):
    x = gate_up(*shape, dtype)
    before, out = x.clone(), silu_mul(x)
    assert out.shape == shape
    assert out.dtype == dtype
    assert torch.equal(x, before)
    assert_close(out, judged(x), KIND_OF[dtype])
    apart = ulps_apart(out, judged(x, dtype))
    if dtype != torch.float32 and out.numel():  # one ulp of the gate is up to two of the product
        assert (apart <= 2).all()
        assert (apart == 0).float().mean() > 0.98


def test_extreme_gates():
    gates = torch.tensor([[-torch.inf, -1e4, -100.0, -0.0, 0.0, 100.0, 6e4, torch.nan]])
    x = torch.cat((gates, torch.full_like(gates, 0.5)), dim=1).to(torch.bfloat16).to(device())
    with np.errstate(over="ignore", invalid="ignore"):  # the interpreter computes exp(1e4), and infinity by infinity, with numpy
        out = silu_mul(x)
    assert (ulps_apart(out, judged(x, torch.bfloat16)) == 0).all()


def test_a_row_has_the_same_bits_in_any_batch():
    x = gate_up(9, 200, torch.bfloat16)
    together = silu_mul(x)
    for row in (0, 8):
        assert torch.equal(silu_mul(x[row : row + 1])[0], together[row])


def test_the_output_may_be_given():
    x = gate_up(3, 40, torch.bfloat16)
    out = torch.full((3, 40), torch.nan, dtype=torch.bfloat16, device=device())
    assert silu_mul(x, out=out) is out
    assert torch.equal(out, silu_mul(x))


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_levels_are_those_that_the_product_would_be_quantised_to(kind):
    x = gate_up(3, 1030, torch.bfloat16)
    found, right = silu_mul_levels(x, kind), quantise_rows(silu_mul(x), kind)
    assert torch.equal(found.levels.view(torch.uint8), right.levels.view(torch.uint8))
    assert torch.equal(found.scales, right.scales)


@pytest.mark.skipif(device().type == "cpu", reason="a million rows are hours in the interpreter")
def test_a_row_behind_two_to_the_31_elements():
    x = torch.empty(2**20 + 1, 2048, dtype=torch.bfloat16, device=device())
    one = gate_up(1, 1024, torch.bfloat16)
    x[-1] = one[0]
    assert torch.equal(silu_mul(x)[-1], silu_mul(one)[0])


@pytest.mark.parametrize(
    ("change", "told"),
    [(lambda x: x[:, 1:], "shape"), (lambda x: x.t().contiguous().t(), "strides")],
    ids=["odd", "strided"],
)
def test_what_the_kernel_could_not_read_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        silu_mul(change(gate_up(3, 40, torch.bfloat16)))


def test_an_output_of_another_dtype_is_refused():
    with pytest.raises(ValueError, match="float32"):
        silu_mul(gate_up(3, 40, torch.bfloat16), out=torch.empty(3, 40, device=device()))
