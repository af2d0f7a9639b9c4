"""Numbers that everybody computes on paper: they come out exactly."""

import pytest
from pagoda_sizing.cost import Monthly, breakeven_requests, breakeven_tokens, dollars_per_million
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import max_concurrency
from pagoda_sizing.model import unshared_prefix_bytes
from pagoda_sizing.published import published_model
from pagoda_sizing.quant import nominal_bytes
from pagoda_sizing.roofline import Work, step_seconds

H100_BANDWIDTH = 3.35e12


@pytest.fixture
def llama70b():
    return parse_model(published_model("meta-llama/Meta-Llama-3-70B").config)


def test_llama_3_70b_holds_327680_bytes_per_token(llama70b):
    assert llama70b.kv_bytes_per_token() == 327_680


def test_llama_3_70b_without_grouped_attention_would_hold_eight_times_that(llama70b):
    assert llama70b.without_gqa().kv_bytes_per_token() == 2_621_440


def test_llama_3_8b_holds_131072_bytes_per_token():
    assert parse_model(published_model("meta-llama/Meta-Llama-3-8B").config).kv_bytes_per_token() == 131_072


def test_llama_2_7b_at_4096_tokens_holds_2_gib():
    assert parse_model(published_model("meta-llama/Llama-2-7b-hf").config).kv_bytes(4096) == 2_147_483_648


def test_a_prefix_that_100_users_do_not_share_costs_67_gb(llama70b):
    assert unshared_prefix_bytes(llama70b, prefix=2048, users=100) == 67_108_864_000


@pytest.mark.parametrize("quantisation", ["int4", "nvfp4"])
def test_70_billion_parameters_in_four_bits_are_35_gb(quantisation):
    assert nominal_bytes(70_000_000_000, quantisation) == 35_000_000_000


def test_14_gb_of_weights_are_read_in_4_18_ms_hence_239_tokens_per_second():
    seconds = step_seconds(Work(weight_bytes=14e9, flops=0), H100_BANDWIDTH, 989e12)
    assert (round(seconds * 1000, 2), round(1 / seconds)) == (4.18, 239)


def test_70_gb_of_weights_and_104_gb_of_kv_are_read_in_51_9_ms():
    assert round(step_seconds(Work(70e9, 0, kv_bytes=104e9), H100_BANDWIDTH, 989e12) * 1000, 1) == 51.9


def test_80_gb_less_weights_and_reserve_hold_34_requests():
    assert max_concurrency(80 * 10**9, 3_500_000_000, 3 * 10**9, 2_147_000_000) == 34


@pytest.mark.parametrize(("price", "throughput", "dollars"), [(10, 3400, 0.817), (8.424, 300, 7.80), (8.424, 1000, 2.34)])
def test_dollars_per_million_tokens(price, throughput, dollars):
    assert round(dollars_per_million(price, throughput), 3) == dollars


def test_break_even_counts_the_hours_of_people():
    assert breakeven_requests(Monthly(hardware=8640, ops_hours=20, ops_rate=100), 0.0085) == 1_251_765


def test_break_even_in_tokens():
    assert breakeven_tokens(Monthly(4608), 10) == 460_800_000


# Floors of Llama-3-8B on H200, context 1,024, 15.0 GB read per step, 989 TFLOP/s (1,979 at fp8).
@pytest.mark.parametrize(("batch", "milliseconds"), [(1, 3.16), (8, 3.35), (32, 4.02), (64, 4.92), (128, 6.71), (256, 11.04)])
def test_decode_floor_of_an_8b_on_h200(batch, milliseconds):
    read = 8_030_261_248 - 128_256 * 4096
    work = Work(weight_bytes=2 * read, flops=2 * batch * read, kv_bytes=batch * 1024 * 131_072)
    assert step_seconds(work, 4.8e12, 989e12) * 1000 == pytest.approx(milliseconds, abs=0.006)


@pytest.mark.parametrize(("batch", "milliseconds"), [(1, 1.58), (64, 2.46), (256, 5.52)])
def test_decode_floor_of_an_8b_in_fp8_on_h200(batch, milliseconds):
    read = 8_030_261_248 - 128_256 * 4096
    work = Work(weight_bytes=read, flops=2 * batch * read, kv_bytes=batch * 1024 * 65_536)
    assert step_seconds(work, 4.8e12, 1979e12) * 1000 == pytest.approx(milliseconds, abs=0.006)
