"""Bytes and FLOPs of a step, computed by hand for models whose active parameters are published."""

import pytest
from pagoda_sizing.devices import find
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand
from pagoda_sizing.plan import Ask, plan
from pagoda_sizing.published import published_model
from pagoda_sizing.roofline import Efficiency, Work, decode_work, prefill_work, seconds, step_seconds


def model(name):
    return parse_model(published_model(name).config)


LLAMA, MIXTRAL = model("meta-llama/Llama-3.1-8B"), model("mistralai/Mixtral-8x7B-v0.1")
# Published: 12,879,925,248 active of 46,702,792,704; the input embedding of 32,000 x 4,096 is a look-up.
MIXTRAL_READ = 12_879_925_248 - 32_000 * 4096


def test_one_token_of_a_mixture_computes_and_reads_its_active_parameters():
    work = decode_work(MIXTRAL, Demand(1000), batch=1)
    assert work.flops == 2 * MIXTRAL_READ
    assert work.weight_bytes == 2 * MIXTRAL_READ
    assert work.kv_bytes == 1000 * 131_072


def test_more_tokens_read_more_experts_but_compute_no_more_each():
    one, many = decode_work(MIXTRAL, Demand(1000), 1), decode_work(MIXTRAL, Demand(1000), 64)
    assert many.flops == 64 * one.flops
    everything = 2 * (46_702_792_704 - 32_000 * 4096)
    assert one.weight_bytes < 0.28 * everything
    assert 0.99 * everything < many.weight_bytes <= everything


def test_a_tied_embedding_is_read_as_the_head_and_an_own_one_is_not_read():
    assert decode_work(LLAMA, Demand(1), 1).flops == 2 * (8_030_261_248 - 128_256 * 4096)
    assert decode_work(model("meta-llama/Llama-3.2-1B-Instruct"), Demand(1), 1).flops == 2 * 1_235_814_400


def test_ranks_share_weights_and_exchange_two_activations_per_layer():
    alone, split = decode_work(LLAMA, Demand(1000), 8), decode_work(LLAMA, Demand(1000), 8, degree=4)
    assert (alone.link_bytes, split.link_bytes) == (0, 32 * 2 * (2 * 3 / 4) * 8 * 4096 * 2)
    assert (4 * split.weight_bytes, 4 * split.flops, 4 * split.kv_bytes) == (alone.weight_bytes, alone.flops, alone.kv_bytes)
    assert prefill_work(LLAMA, Demand(1000), 8, degree=4).link_bytes == split.link_bytes


def test_a_prompt_computes_the_head_once_and_attends_to_half_the_pairs():
    head, prompt = 128_256 * 4096, 1000
    linear = 2 * (prompt * (8_030_261_248 - 2 * head) + head)
    attention = 32 * 2 * 32 * 2 * 128 * prompt * (prompt + 1) / 2
    assert prefill_work(LLAMA, Demand(prompt), prompt).flops == linear + attention


def test_a_window_bounds_the_pairs_of_a_prompt():
    mistral = model("mistralai/Mistral-7B-v0.1")
    head, prompt, window = 32_000 * 4096, 10_000, 4096
    linear = 2 * (prompt * (7_241_732_096 - 2 * head) + head)
    pairs = window * (window + 1) / 2 + (prompt - window) * window
    assert prefill_work(mistral, Demand(prompt), prompt).flops == linear + 32 * 2 * 32 * 2 * 128 * pairs


def test_an_encoder_has_no_head_and_attends_both_ways():
    bert = model("google-bert/bert-base-uncased")
    linear = 2 * 512 * (109_482_240 - (30_522 + 512 + 2) * 768)
    assert prefill_work(bert, Demand(512), 512).flops == linear + 12 * 2 * 12 * 2 * 64 * 512**2


def test_the_rate_is_that_of_the_weights_format_where_the_device_has_one():
    work = Work(weight_bytes=0, flops=1e15)
    times = {name: seconds(work, find("h100"), name) for name in ("bf16", "fp8", "int8", "int4", "nvfp4")}
    assert times["fp8"] == times["int8"] == 1e15 / 1979e12
    assert times["bf16"] == times["int4"] == times["nvfp4"] == 1e15 / 989e12
    assert seconds(work, find("b200"), "nvfp4") == 1e15 / 9000e12
    assert seconds(work, find("a100-80"), "fp8") == 1e15 / 312e12


def test_efficiency_divides_each_rate_by_itself():
    memory, compute = Work(1e12, 0, kv_bytes=1e12), Work(0, 1e15)
    h100, half = find("h100"), Efficiency(bandwidth=0.5, compute=0.25)
    assert seconds(memory, h100, "bf16", half) == pytest.approx(2 * seconds(memory, h100, "bf16"))
    assert seconds(compute, h100, "bf16", half) == pytest.approx(4 * seconds(compute, h100, "bf16"))


def test_the_link_adds_to_the_step():
    assert step_seconds(Work(10, 0, link_bytes=30), 10, 1, 10) == pytest.approx(1 + 3)


def test_every_rank_is_paid_for():
    one, two = (plan(LLAMA, [find("h100")], Ask(1024, 4, degree=degree))[0] for degree in (1, 2))
    assert two.dollars_per_million * two.tokens_per_s == pytest.approx(2 * one.dollars_per_million * one.tokens_per_s)
