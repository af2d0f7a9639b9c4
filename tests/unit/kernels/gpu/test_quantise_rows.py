"""Rows as 8-bit levels: as near as the levels allow, the same in any batch, and what is not finite stays in its row."""

import pytest
import torch
from pagoda_kernels.gpu.levels import LARGEST
from pagoda_kernels.gpu.quantise_rows import quantise_rows
from pagoda_kernels.reference.quantise_rows import quantise_rows as judged
from pagoda_kernels.testing import device

KINDS = list(LARGEST)
HALF_STEP = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 2**-4}
"""Of a value's neighbours: of the largest value in int8, of the value itself in fp8."""


def rows(count, width, dtype=torch.bfloat16, seed=0):
    """Behind the last row the storage is NaN."""
    storage = torch.full((count * width + 4096,), torch.nan)
    storage[: count * width] = torch.randn(count * width, generator=torch.Generator().manual_seed(seed)) * 3
    return storage.to(dtype).to(device())[: count * width].view(count, width)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((1, 1), torch.float32), ((3, 33), torch.bfloat16), ((2, 1280), torch.float16), ((0, 64), torch.bfloat16)]
)
def test_each_number_is_at_its_nearest_level(shape, dtype, kind):
    x = rows(*shape, dtype)
    before, found = x.clone(), quantise_rows(x, kind)
    assert (found.levels.shape, found.levels.dtype, found.scales.dtype) == (shape, kind, torch.float32)
    assert torch.equal(x, before)
    levels, scales = judged(x, kind)
    assert torch.allclose(found.scales.double(), scales, rtol=1e-6)
    apart = (found.levels.double() * found.scales.double()[:, None] - x.double()).abs()
    near = x.double().abs() if kind != torch.int8 else x.double().abs().amax(-1, keepdim=True)
    assert (apart <= near * HALF_STEP[kind] * 1.001 + scales[:, None] * 2**-10).all()
    assert (found.levels.double() == levels.double()).float().mean() > 0.99 or not x.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_batch_and_zeros_stay_zeros(kind):
    x = rows(5, 200)
    x[3] = 0
    together = quantise_rows(x, kind)
    alone = quantise_rows(x[4:], kind)
    assert torch.equal(alone.levels.view(torch.uint8)[0], together.levels.view(torch.uint8)[4])
    assert alone.scales[0] == together.scales[4]
    assert (together.levels[3].float() * together.scales[3] == 0).all()


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_makes_its_row_nan_and_no_other(kind, odd):
    x = rows(3, 40)
    clean = quantise_rows(x, kind)
    x[1, 7] = odd
    found = quantise_rows(x, kind)
    assert found.scales.isnan().tolist() == [False, True, False]
    assert (found.levels[1].float() == 0).all()
    assert torch.equal(found.levels.view(torch.uint8)[::2], clean.levels.view(torch.uint8)[::2])


@pytest.mark.skipif(device().type == "cpu", reason="two million rows are hours in the interpreter")
def test_a_row_behind_two_to_the_31_elements():
    x, one = torch.empty(2**21 + 1, 1024, dtype=torch.bfloat16, device=device()), rows(1, 1024)
    x[-1] = one[0]
    assert torch.equal(quantise_rows(x, torch.int8).levels[-1], quantise_rows(one, torch.int8).levels[0])


@pytest.mark.parametrize(("change", "kind", "told"), [(lambda x: x.t(), torch.int8, "strides"), (lambda x: x, torch.int16, "int16")])
def test_what_the_kernel_does_not_write_is_refused(change, kind, told):
    with pytest.raises(ValueError, match=told):
        quantise_rows(change(rows(3, 40)), kind)
