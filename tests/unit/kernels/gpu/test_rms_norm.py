"""Norms of rows beside float64, beside the roundings of the daemon's torch ops, and the same bits in any batch."""

import pytest
import torch
from pagoda_kernels.gpu.quantise_rows import quantise_rows
from pagoda_kernels.gpu.rms_norm import add_rms_norm, rms_norm, rms_norm_levels
from pagoda_kernels.reference.rms_norm import add_rms_norm as judged_add
from pagoda_kernels.reference.rms_norm import rms_norm as judged
from pagoda_kernels.reference.ulps import ulps_apart
from pagoda_kernels.testing import KIND_OF, assert_close, device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (3, 64), (5, 33), (2, 100), (7, 1), (2, 1280), (1, 4096), (0, 64)]
EPS = 1e-5


def rows(tokens, width, dtype, seed=0):
    """x and weight; behind x's last row its storage is NaN."""
    chance = torch.Generator().manual_seed(seed)
    storage = torch.full((tokens * width + 4096,), torch.nan)
    storage[: tokens * width] = torch.randn(tokens * width, generator=chance) * 3
    weight = torch.randn(width, generator=chance)
    return storage.to(dtype).to(device())[: tokens * width].view(tokens, width), weight.to(dtype).to(device())


def assert_rounded_alike(out, expected):
    """One ulp of the value that is rounded first is up to two of its product. Sums in fp32 have another order."""
    if out.dtype == torch.float32:
        return
    apart = ulps_apart(out, expected)
    assert (apart <= 2).all()
    assert (apart == 0).float().mean() > 0.98 or not out.numel()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_each_row_is_scaled_to_a_mean_square_of_one(shape, dtype):
    x, weight = rows(*shape, dtype)
    before = x.clone()
    out = rms_norm(x, weight, EPS)
    assert out.shape == x.shape
    assert out.dtype == dtype
    assert_close(out, judged(x, weight, EPS), KIND_OF[dtype])
    assert_rounded_alike(out, judged(x, weight, EPS, dtype))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_residual_is_the_sum_bit_for_bit_and_the_norm_is_of_it(shape, dtype):
    (x, weight), (residual, _) = rows(*shape, dtype), rows(*shape, dtype, seed=1)
    before, expected = x.clone(), judged_add(x, residual, weight, EPS, dtype)
    exact, _ = judged_add(residual, x, weight, EPS)
    out = add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(residual, expected[1])
    assert torch.equal(x, before)
    assert_rounded_alike(out, expected[0])
    if dtype == torch.float32:
        assert_close(out, exact, KIND_OF[dtype])
    assert_close(out, judged(residual, weight, EPS), KIND_OF[dtype])


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_eps_is_added_to_the_mean_square(eps):
    x, weight = rows(2, 32, torch.float32)
    assert_close(rms_norm(x * 0.1, weight, eps), judged(x * 0.1, weight, eps), "fp32")


def test_a_row_of_zeros_stays_zeros():
    x, weight = rows(2, 48, torch.bfloat16)
    x[1] = 0
    assert (rms_norm(x, weight, 1e-6)[1] == 0).all()


@pytest.mark.parametrize("width", [33, 512])
def test_a_row_has_the_same_bits_in_any_batch(width):
    x, weight = rows(17, width, torch.bfloat16)
    together = rms_norm(x, weight, EPS)
    for row in (0, 7, 16):
        assert torch.equal(rms_norm(x[row : row + 1], weight, EPS)[0], together[row])


def test_a_nan_stays_in_its_row():
    x, weight = rows(3, 40, torch.bfloat16)
    clean = rms_norm(x, weight, EPS)
    x[1, 39] = torch.nan
    out = rms_norm(x, weight, EPS)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_the_output_may_be_given_and_may_be_the_input():
    x, weight = rows(3, 40, torch.bfloat16)
    expected, out = rms_norm(x, weight, EPS), torch.full_like(x, torch.nan)
    assert rms_norm(x, weight, EPS, out=out) is out
    assert torch.equal(out, expected)
    assert rms_norm(x, weight, EPS, out=x) is x
    assert torch.equal(x, expected)


def test_the_sum_s_norm_may_be_written_over_what_was_added():
    (x, weight), (residual, _) = rows(3, 40, torch.bfloat16), rows(3, 40, torch.bfloat16, seed=1)
    expected, total = judged_add(x, residual, weight, EPS, torch.bfloat16)
    assert add_rms_norm(x, residual, weight, EPS, out=x) is x
    assert_rounded_alike(x, expected)
    assert torch.equal(residual, total)


@pytest.mark.skipif(device().type == "cpu", reason="two million rows are hours in the interpreter")
def test_a_row_behind_two_to_the_31_elements():
    x = torch.empty(2**21 + 1, 1024, dtype=torch.bfloat16, device=device())
    one, weight = rows(1, 1024, torch.bfloat16)
    x[-1] = one[0]
    assert torch.equal(rms_norm(x, weight, EPS, out=x)[-1], rms_norm(one, weight, EPS)[0])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, weight: (x.t().contiguous().t(), weight), "strides"),
        (lambda x, weight: (x, weight[:-1]), "shape"),
        (lambda x, weight: (x, weight.float()), "float32"),
    ],
)
def test_what_the_kernel_could_not_read_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        rms_norm(*change(*rows(3, 40, torch.bfloat16)), EPS)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("added", [False, True])
def test_levels_are_those_that_the_norm_would_be_quantised_to(kind, added):
    (x, weight), (residual, _) = rows(3, 100, torch.bfloat16), rows(3, 100, torch.bfloat16, seed=1)
    total = residual.clone()
    right = quantise_rows(add_rms_norm(x, total, weight, EPS) if added else rms_norm(x, weight, EPS), kind)
    found = rms_norm_levels(x, residual if added else None, weight, EPS, kind)
    assert torch.equal(found.levels.view(torch.uint8), right.levels.view(torch.uint8))
    assert torch.equal(found.scales, right.scales)
    assert torch.equal(residual, total) or not added


def test_a_residual_of_another_shape_is_refused():
    x, weight = rows(3, 40, torch.bfloat16)
    with pytest.raises(ValueError, match="expected a contiguous"):
        add_rms_norm(x, x[:2].clone(), weight, EPS)
