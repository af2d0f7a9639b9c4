"""Products with weights of 4 bits beside float64, cut into pieces in any way, and the layouts that the weights come from."""

import pytest
import torch
from pagoda_kernels.gpu.matrices import linear_w4a16 as linear_w4a16_module
from pagoda_kernels.gpu.matrices.dequantise_w4 import dequantise_w4
from pagoda_kernels.gpu.matrices.linear_w4a16 import DENSE_ROWS, Config, W4Scratch, linear_w4a16, w4_config
from pagoda_kernels.gpu.matrices.w4_weights import awq_levels, gptq_levels, of_groups, packed_w4, quantised_w4
from pagoda_kernels.reference.linear_w4a16 import dequantised_w4
from pagoda_kernels.reference.linear_w4a16 import linear_w4a16 as judged
from pagoda_kernels.testing import assert_close, device


def matrix(outputs, inputs, *, zeros=False, dtype=torch.bfloat16, seed=0):
    """(levels, scales, zeros, the packed weights on the device)."""
    chance = torch.Generator().manual_seed(seed)
    levels = torch.randint(0, 16, (outputs, inputs), generator=chance)
    shape = outputs, -(-inputs // 128)
    scales = (torch.rand(shape, generator=chance) + 0.5).to(dtype) / 16
    middles = torch.randint(0, 17, shape, generator=chance) if zeros else None
    return levels, scales, middles, packed_w4(*(None if one is None else one.to(device()) for one in (levels, scales, middles)))


def rows(count, inputs, dtype=torch.bfloat16, seed=1):
    """Behind the last row the storage is NaN."""
    storage = torch.full((count * inputs + 8192,), torch.nan)
    storage[: count * inputs] = torch.randn(count * inputs, generator=torch.Generator().manual_seed(seed))
    return storage.to(dtype).to(device())[: count * inputs].view(count, inputs)


def run(x, weights, bias=None, config=None, **kwargs):
    """The product, with NaN in the scratch, whose counters are 0 before and after."""
    scratch = W4Scratch.of(weights.outputs, device(), () if config is None else (config,))
    scratch.partial.fill_(torch.nan)
    out = linear_w4a16(x, weights, scratch, bias, config=config, **kwargs)
    assert not scratch.counters.any()
    return out


def check(x, weights, bias=None, config=None):
    assert_close(run(x, weights, bias, config), judged(x, weights, bias), "dequantised")


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_levels_minus_zeros_times_scales(dtype, zeros):
    levels, scales, middles, weights = matrix(70, 256, zeros=zeros, dtype=dtype)
    exact = (levels - (middles.repeat_interleave(128, 1) if zeros else 8)) * scales.double().repeat_interleave(128, 1)
    assert torch.equal(dequantised_w4(weights), exact)
    assert torch.equal(dequantise_w4(weights, dtype).cpu(), exact.to(dtype))
    check(rows(3, 256, dtype), weights)


@pytest.mark.parametrize(("count", "outputs", "inputs"), [(0, 64, 128), (1, 1, 8), (17, 33, 128), (33, 130, 136), (65, 64, 256)])
def test_odd_shapes(count, outputs, inputs):
    weights = matrix(outputs, inputs, zeros=True)[3]
    bias = rows(1, outputs, seed=2)[0]
    check(rows(count, inputs), weights, bias)


@pytest.mark.parametrize("programs", [1, 5])
def test_tiles_cut_into_pieces_are_added_up(programs):
    """On two multiprocessors 9 units in 2 and in 9 pieces: a tile that is whole, in two, in three."""
    check(rows(2, 384), matrix(192, 384)[3], config=Config(tile_n=64, programs=programs))


def test_a_row_has_the_same_bits_in_any_batch_of_its_width():
    weights, x = matrix(66, 384)[3], rows(20, 384)
    together, wide = run(x[:16], weights), run(x, weights)
    assert torch.equal(run(x[5:6], weights)[0], together[5])
    assert torch.equal(run(x[3:], weights), wide[3:])


def test_a_nan_stays_in_its_row():
    weights, x = matrix(64, 256)[3], rows(3, 256)
    clean = run(x, weights)
    x[1, 255] = torch.nan
    out = run(x, weights)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("biased", [False, True])
def test_many_rows_are_multiplied_by_dequantised_weights_some_outputs_at_a_time(biased, monkeypatch):
    monkeypatch.setattr(linear_w4a16_module, "_DENSE_BYTES", 0)
    weights, x = matrix(150, 128, zeros=biased)[3], rows(DENSE_ROWS, 128)
    bias = rows(1, 150, seed=2)[0] if biased else None
    out = torch.full((DENSE_ROWS, 150), torch.nan, dtype=x.dtype, device=x.device)
    assert run(x, weights, bias, out=out) is out
    assert_close(out, judged(x, weights, bias), "dequantised")


def test_bf16_is_rounded_to_the_nearest_level_and_the_furthest_keeps_its_value():
    weight = torch.randn(6, 300, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight[2] = 0
    near = dequantised_w4(quantised_w4(weight))
    step = torch.nn.functional.pad(weight.double(), (0, 84)).view(6, 3, 128).abs().amax(2).div(8).repeat_interleave(128, 1)[:, :300]
    inside = weight.double().abs() <= 7.4 * step  # the one of the other sign is cut at 7 steps
    assert ((near - weight).abs() <= 0.51 * step)[inside].all()
    assert ((near - weight).abs() <= 1.01 * step).all()
    assert (near[2] == 0).all()


def words(levels, order):
    """int32, eight columns in each: nibble i is column order[i]."""
    eights = levels.view(len(levels), -1, 8)[..., list(order)]
    return sum(eights[..., place] << 4 * place for place in range(8)).to(torch.int32)


def test_layouts_of_checkpoints():
    chance = torch.Generator().manual_seed(0)
    levels, zeros = torch.randint(0, 16, (512, 24), generator=chance), torch.randint(0, 16, (4, 24), generator=chance)
    wanted = levels.T.to(torch.uint8), zeros.T.to(torch.uint8)
    awq = [words(numbers, (0, 2, 4, 6, 1, 3, 5, 7)) for numbers in (levels, zeros)]
    down = words(levels.T.contiguous(), range(8)).T
    first, second = (words((zeros - less) % 16, range(8)) for less in (1, 0))
    for found in (awq_levels(*awq), gptq_levels(down, first, one_less=True), gptq_levels(down, second, one_less=False)):
        assert all(map(torch.equal, found, wanted))


def test_a_longer_group_is_several_of_128():
    levels, chance = torch.randint(0, 16, (24, 512)), torch.Generator().manual_seed(0)
    zeros, scales = torch.randint(0, 16, (24, 2), generator=chance), torch.rand(24, 2, generator=chance).half()
    exact = (levels - zeros.repeat_interleave(256, 1)) * scales.double().repeat_interleave(256, 1)
    assert torch.equal(dequantised_w4(packed_w4(levels, of_groups(scales, 512), of_groups(zeros, 512))), exact)


def test_zeros_that_are_all_in_the_middle_are_not_kept():
    levels, scales, *_ = matrix(64, 128)
    assert packed_w4(levels, scales, torch.full_like(scales, 8)).zeros is None
    assert packed_w4(levels, scales, torch.full_like(scales, 7)).zeros is not None


@pytest.mark.skipif(device().type == "cpu", reason="gigabytes")
def test_weights_behind_two_to_the_31_bytes():
    levels = torch.randint(0, 16, (140000, 128), dtype=torch.uint8, device=device()).repeat(1, 250)
    weights = packed_w4(levels, torch.ones(140000, 250, dtype=torch.bfloat16, device=device()), None)
    x = rows(2, 32000)
    assert_close(run(x, weights)[:, -100:], x.double().cpu() @ (levels[-100:].double() - 8).T.cpu(), "dequantised")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x, weights, scratch: (x[:, :-8], weights, scratch), "shape"),
        (lambda x, weights, scratch: (x.float(), weights, scratch), "float32"),
        (lambda x, weights, scratch: (x, weights, W4Scratch(scratch.partial[:100], scratch.counters, 2)), "scratch must hold"),
    ],
)
def test_what_the_kernel_could_not_read_is_refused(change, told):
    weights = matrix(64, 256)[3]
    with pytest.raises(ValueError, match=told):
        linear_w4a16(*change(rows(2, 256), weights, W4Scratch.of(64, device())))


def test_groups_that_the_kernel_does_not_know_are_refused():
    with pytest.raises(ValueError, match="group size must be 128 or a multiple of it, got 64"):
        of_groups(torch.ones(24, 4), 256)
    with pytest.raises(ValueError, match="one for each 128 inputs"):
        packed_w4(torch.zeros(64, 256), torch.ones(64, 1), None)
    with pytest.raises(ValueError, match="tile_n must be 64, 128 or 256, got 192"):
        Config(tile_n=192)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_the_configurations_in_use(width):
    check(rows(width, 128), matrix(128, 128)[3])
    assert w4_config(width).tile_n == 128
