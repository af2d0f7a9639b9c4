"""Verdicts, degrees, prices and the catalogue, by example."""

import pytest
from pagoda_sizing.cost import goodput, utilisation
from pagoda_sizing.devices import find
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand, fit, smallest_degree, smallest_profile
from pagoda_sizing.model import Experts
from pagoda_sizing.plan import Ask, Verdict, plan, priced
from pagoda_sizing.published import published_model


def model(name):
    return parse_model(published_model(name).config)


LLAMA8B, LLAMA70B = model("meta-llama/Llama-3.1-8B"), model("meta-llama/Llama-3.1-70B")


def row(subject, device, ask):
    return plan(subject, [find(device)], ask)[0]


def test_an_8b_takes_the_smallest_slice_that_holds_weights_and_cache():
    assert smallest_profile(LLAMA8B, "h100", Demand(4096, 1)).device == "h100:1g.20gb"
    assert smallest_profile(LLAMA8B, "h100", Demand(4096, 8)).device == "h100:3g.40gb"
    assert smallest_profile(LLAMA8B, "h100", Demand(4096, 1, "int4")).device == "h100:1g.10gb"
    assert smallest_profile(LLAMA70B, "h100", Demand(4096, 1)) is None


def test_a_70b_needs_four_h100_in_bf16_two_in_fp8_and_one_in_int4():
    degrees = {name: smallest_degree(LLAMA70B, find("h100"), Demand(8192, 8, name)).degree for name in ("bf16", "fp8", "int4")}
    assert degrees == {"bf16": 4, "fp8": 2, "int4": 1}


def test_kv_heads_split_over_ranks_until_there_is_one_each_and_a_latent_never():
    gemma = model("google/gemma-3-1b-it")
    assert fit(gemma, find("l4"), Demand(512), 4).kv_bytes_per_request == gemma.kv_bytes(512)
    deepseek = model("deepseek-ai/DeepSeek-V3")
    assert fit(deepseek, find("h200"), Demand(4096), 8).kv_bytes_per_request == deepseek.kv_bytes(4096)
    assert fit(LLAMA70B, find("h100"), Demand(4096), 4).kv_bytes_per_request == LLAMA70B.kv_bytes(4096) // 4


def test_why_not_names_the_memory_that_is_short():
    found = row(LLAMA70B, "h100:3g.40gb", Ask(4096, 1))
    assert (found.verdict, found.why) == (Verdict.NO, "weights and reserve, 143.3 GB, exceed 40.0 GB")
    full = row(LLAMA8B, "l4", Ask(8192, 16, degree=1))
    assert full.why == "KV cache for 16 needs 17.2 GB, 4.8 GB is free: at most 4"


def test_too_slow_says_which_objective_and_by_how_much():
    found = row(LLAMA8B, "l4", Ask(2048, 4, tpot_s=0.01, ttft_s=10, degree=1))
    assert found.verdict is Verdict.SLOW
    assert found.why.startswith("tpot ")
    assert found.why.endswith("is above 10 ms")
    assert row(LLAMA8B, "l4", Ask(2048, 4, ttft_s=0.01, degree=1)).why.startswith("ttft ")


def test_more_ranks_are_taken_where_they_meet_the_objective():
    alone, needed = row(LLAMA8B, "h100", Ask(2048, 4)), row(LLAMA8B, "h100", Ask(2048, 4, tpot_s=0.005))
    assert (alone.tensor_parallel, needed.tensor_parallel, needed.verdict) == (1, 2, Verdict.LATER)
    assert needed.why == "a replica computes on one device, because tensor parallelism is not built; it would fit on 2"


def test_where_no_degree_does_the_reason_is_that_of_the_highest():
    """The user has no more devices to add: what is short on one device alone is no answer."""
    short, slow = row(LLAMA70B, "a10", Ask(4096, 64)), row(LLAMA8B, "h100", Ask(2048, 4, tpot_s=1e-6))
    assert (short.tensor_parallel, short.verdict) == (8, Verdict.NO)
    assert short.why.endswith(" on each of 8")
    assert (slow.tensor_parallel, slow.verdict) == (8, Verdict.SLOW)


def test_more_requests_than_a_service_has_unasked_fit_beside_a_step_for_all_of_them():
    subject, device = model("TinyLlama/TinyLlama-1.1B-Chat-v1.0"), find("h200:1g.18gb")
    most = row(subject, device.name, Ask(2048)).max_concurrency
    assert most > Ask(2048).demand.ceiling
    assert [fit(subject, device, Demand(2048, count, ceiling=count)).fits for count in (most, most + 1)] == [True, False]


def test_a_format_that_a_device_does_not_run_is_unsupported():
    found = row(LLAMA8B, "t4", Ask(2048, quantisation="nvfp4"))
    assert (found.verdict, found.why) == (Verdict.UNSUPPORTED, "nvfp4 weights do not run on it; it runs bf16, int8, int4")


def test_a_slice_refuses_ranks_without_refusing_the_plan():
    whole, part = plan(LLAMA8B, [find("h100"), find("h100:4g.40gb")], Ask(2048, 1, degree=2))
    assert (whole.verdict, part.verdict) == (Verdict.LATER, Verdict.NO)
    assert "accepted on a MIG slice is 1" in part.why


def test_an_encoder_is_bounded_by_time_only():
    found = row(model("google-bert/bert-base-uncased"), "l4", Ask(512))
    assert (found.verdict, found.max_concurrency, found.tpot_ms) == (Verdict.FITS, None, None)
    assert found.tokens_per_s == pytest.approx(512 / (found.ttft_ms / 1000))


def test_predicted_batch_1_time_of_an_8b_on_h100_is_near_the_published_one():
    # vLLM on H100, Llama-3.1-8B bf16: 6.44 ms per token plus 4.37e-5 ms per token of context (blog of 2026-04-22).
    assert row(LLAMA8B, "h100", Ask(1024, 1, degree=1)).tpot_ms == pytest.approx(6.44 + 1024 * 4.37e-5, rel=0.02)


def test_a_users_price_replaces_the_catalogues_and_reaches_slices_in_proportion():
    whole, part, other = priced([find("h100"), find("h100:3g.40gb"), find("l4")], {"h100": 8.0})
    assert (whole.price_per_hour, part.price_per_hour, other.price_per_hour) == (8.0, 4.0, find("l4").price_per_hour)


def test_a_slice_pays_for_the_larger_of_its_shares():
    """4g.20gb of an A100 is half of the memory and 56 of the 108 SMs; 3g.20gb is half of the memory and 42 SMs."""
    four, three = priced([find("a100-40:4g.20gb"), find("a100-40:3g.20gb")], {"a100-40": 108.0})
    assert (four.price_per_hour, three.price_per_hour) == (pytest.approx(56), pytest.approx(54))


def test_without_a_price_there_are_no_dollars():
    assert row(LLAMA8B, "cpu", Ask(1024, 1)).dollars_per_million is None


def test_experts_touched_approach_all_as_the_batch_grows():
    experts = Experts(count=128, per_token=8)
    assert experts.touched(1) == pytest.approx(8 / 128)
    assert experts.touched(2) == pytest.approx(1 - (120 / 128) ** 2)
    assert experts.touched(1000) == pytest.approx(1)


def test_goodput_and_utilisation():
    assert goodput(1000, 0.95) == 950
    assert utilisation(served_tokens=1_800_000, capacity_tokens_per_s=1000, hours=1) == 0.5
