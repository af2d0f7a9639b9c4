"""Linear maps of 8-bit weights and rows beside the float64 product of what they stand for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from pagoda_kernels.gpu.levels import LARGEST, ScaledRows
from pagoda_kernels.gpu.matrices.linear_w8a8 import Config, choose_config, linear_w8a8
from pagoda_kernels.reference.quantise_rows import linear_w8a8 as judged
from pagoda_kernels.testing import assert_close, device

FP8, INT8 = torch.float8_e4m3fn, torch.int8


def scaled(rows, width, kind, seed):
    """Behind the last row the storage is NaN, or the level that spoils most."""
    chance = torch.Generator().manual_seed(seed)
    storage = torch.randn(rows * width + 4096, generator=chance).clamp(-3, 3) * (LARGEST[kind] / 3)
    storage[rows * width :] = torch.nan if kind == FP8 else 127.0
    levels = (storage if kind == FP8 else storage.round()).to(kind)[: rows * width].view(rows, width)
    return ScaledRows(levels.to(device()), (0.001 + torch.rand(rows, generator=chance) / 100).to(device()))


def expected(x, weight, bias=None):
    return judged((x.levels.cpu(), x.scales.cpu()), (weight.levels.cpu(), weight.scales.cpu()), None if bias is None else bias.cpu())


CASES = [
    pytest.param(1, 64, 128, None, id="one row"),
    pytest.param(0, 64, 128, None, id="no row"),
    pytest.param(3, 80, 208, None, id="no edge is a tile's"),
    pytest.param(17, 64, 1024, None, id="inputs in pieces"),
    pytest.param(3, 48, 400, Config(block_k=64, stages=2, splits=3), id="uneven pieces"),
    pytest.param(5, 48, 64, Config(block_k=64, stages=2, splits=4), id="fewer tiles than pieces"),
    pytest.param(19, 80, 208, Config(block_k=64, stages=2, descriptors=True), id="by descriptors"),
    pytest.param(65, 144, 128, None, id="many rows"),
]


@pytest.mark.parametrize("kind", [FP8, INT8])
@pytest.mark.parametrize(("rows", "outputs", "inputs", "config"), CASES)
def test_it_is_the_product_of_what_the_levels_stand_for(rows, outputs, inputs, config, kind):
    x, weight = scaled(rows, inputs, kind, 0), scaled(outputs, inputs, kind, 1)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16).to(device()) if rows % 2 else None
    out = linear_w8a8(x, weight, bias, config=config)
    assert (out.shape, out.dtype) == ((rows, outputs), torch.bfloat16)
    assert_close(out, expected(x, weight, bias), "dequantised")


@pytest.mark.parametrize("kind", [FP8, INT8])
def test_a_row_has_the_same_bits_in_any_batch_of_few(kind):
    x, weight = scaled(20, 1024, kind, 0), scaled(16, 1024, kind, 1)
    together = linear_w8a8(x, weight)
    for row in (0, 19):
        assert torch.equal(linear_w8a8(ScaledRows(x.levels[row : row + 1], x.scales[row : row + 1]), weight)[0], together[row])


def test_a_nan_stays_in_its_row():
    x, weight = scaled(3, 128, INT8, 0), scaled(64, 128, INT8, 1)
    clean = linear_w8a8(x, weight)
    x.scales[1] = torch.nan
    out = linear_w8a8(x, weight)
    assert out[1].isnan().all()
    assert torch.equal(out[::2], clean[::2])


@pytest.mark.parametrize(("outputs", "inputs"), [(4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (64, 256)])
def test_every_number_of_few_rows_cuts_the_inputs_alike(outputs, inputs):
    found = {choose_config(rows, outputs, inputs).splits for rows in (1, 16, 17, 64)}
    assert len(found) == 1
    assert found.pop() * -(-outputs // 64) >= 96 or inputs < 1024


@pytest.mark.deep
@settings(max_examples=25, deadline=None)
@given(some.data())
def test_any_shape_and_any_cut(data):
    def number(least, most, step=1):
        return step * data.draw(some.integers(least, most))

    kind, rows, outputs, inputs = data.draw(some.sampled_from([FP8, INT8])), number(1, 40), number(1, 9, 16), number(1, 20, 16)
    config = Config(64, data.draw(some.sampled_from([16, 32])), 64, 4, 2, number(1, 4), data.draw(some.booleans()))
    x, weight = scaled(rows, inputs, kind, 0), scaled(outputs, inputs, kind, 1)
    assert_close(linear_w8a8(x, weight, config=config), expected(x, weight), "dequantised")


def changed(x, matrix, **parts):
    return ScaledRows(parts.get("levels", x.levels), parts.get("scales", x.scales)), parts.get("weight", matrix), parts.get("bias")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda x, w: changed(x, w, levels=x.levels[:, :72].contiguous(), weight=ScaledRows(w.levels[:, :72], w.scales)),
            "multiples of 16",
        ),
        (lambda x, w: changed(x, w, levels=x.levels.t().contiguous().t()), "rows must be contiguous"),
        (lambda x, w: changed(x, w, levels=x.levels.to(torch.uint8)), "one type"),
        (lambda x, w: changed(x, w, scales=x.scales[:1]), "scales of rows"),
        (lambda x, w: changed(x, w, weight=ScaledRows(w.levels, w.scales.half())), "scales of weights"),
        (lambda x, w: changed(x, w, bias=torch.zeros(32, device=device())), "bias must be contiguous torch.bfloat16"),
    ],
)
def test_what_the_kernel_could_not_read_is_refused(change, told):
    with pytest.raises(ValueError, match=told):
        linear_w8a8(*change(scaled(3, 128, INT8, 0), scaled(32, 128, INT8, 1)))
