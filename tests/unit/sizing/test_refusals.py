"""What cannot be answered is refused by type, with the value and what is accepted."""

import pytest
from pagoda_sizing import cost
from pagoda_sizing.config import declared_quantisation, parse_json
from pagoda_sizing.devices import find, profiles_of
from pagoda_sizing.errors import BadConfig, Impossible, SizingError, UnknownArchitecture, UnknownDevice, UnknownQuantisation
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand, fit
from pagoda_sizing.plan import Ask, plan, priced
from pagoda_sizing.published import published_model

LLAMA = published_model("meta-llama/Meta-Llama-3-8B").config
MIXTRAL = published_model("mistralai/Mixtral-8x7B-v0.1").config
DEEPSEEK = published_model("deepseek-ai/DeepSeek-V3").config
GEMMA3 = published_model("google/gemma-3-4b-it").config
GEMMA2 = published_model("google/gemma-2-2b").config
GPT2 = published_model("openai-community/gpt2").config


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize("kind", ["mamba", "gpt_neox", None, 7, ""])
def test_an_unknown_architecture_is_named_with_the_accepted_ones(kind):
    with pytest.raises(UnknownArchitecture, match=r"model_type .* is not supported; supported are bert, deepseek_v2") as refused:
        parse_model({**LLAMA, "model_type": kind})
    assert repr(kind) in str(refused.value)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (without(LLAMA, "hidden_size"), "hidden_size is missing"),
        (without(LLAMA, "vocab_size"), "vocab_size is missing"),
        (without(MIXTRAL, "num_key_value_heads"), "num_key_value_heads is missing"),
        (without(MIXTRAL, "num_experts_per_tok"), "num_experts_per_tok is missing"),
        (without(DEEPSEEK, "kv_lora_rank"), "kv_lora_rank is missing"),
        (without(GPT2, "n_embd"), "n_embd is missing"),
        (without(GEMMA3, "vision_config"), "needs text_config and vision_config"),
        ({**GEMMA3, "vision_config": {"model_type": "clip"}}, "must be siglip_vision_model"),
        ({**GEMMA3, "text_config": 3}, "text_config must be an object, got 3"),
        ({**LLAMA, "num_hidden_layers": 0}, "num_hidden_layers must be a whole number of at least 1, got 0"),
        ({**LLAMA, "num_hidden_layers": -1}, "num_hidden_layers must be a whole number of at least 1, got -1"),
        ({**LLAMA, "num_hidden_layers": 32.0}, "num_hidden_layers must be a whole number of at least 1, got 32.0"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers must be a whole number of at least 1, got True"),
        ({**LLAMA, "num_hidden_layers": "32"}, "num_hidden_layers must be a whole number of at least 1, got '32'"),
        ({**LLAMA, "hidden_size": 1 << 60}, "hidden_size must be a whole number of at least 1, got 1152921504606846976"),
        ({**LLAMA, "hidden_size": 4097}, "hidden_size 4097 is not a multiple of num_attention_heads 32"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads 5 does not divide num_attention_heads 32"),
        ({**LLAMA, "num_key_value_heads": 64}, "num_key_value_heads 64 does not divide"),
        ({**LLAMA, "tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false, got 'no'"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than the 8 experts"),
        ({**DEEPSEEK, "num_experts_per_tok": 257}, "num_experts_per_tok 257 is more than the 256 experts"),
        ({**GEMMA2, "layer_types": ["full_attention"]}, "layer_types must be a list of 26 strings"),
        (
            {**GEMMA2, "layer_types": ["linear_attention"] * 26},
            "layer_types must be full_attention or sliding_attention, got 'linear_attention'",
        ),
        ({**LLAMA, "layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
        ({**GPT2, "n_head": 7}, "not a multiple of 7 heads"),
    ],
)
def test_a_config_that_lacks_or_contradicts_something_is_refused_by_its_key(config, names):
    with pytest.raises(BadConfig) as refused:
        parse_model(config)
    assert names in str(refused.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object, got list"),
        ("", "not JSON"),
        ("3", "must be an object, got int"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_object_is_refused(text, names):
    with pytest.raises(BadConfig, match=names):
        parse_json(text)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
    ],
)
def test_the_declared_quantisation_is_read(section, name):
    assert declared_quantisation({"quantization_config": section}) == name


@pytest.mark.parametrize("section", [{"quant_method": "aqlm"}, {"quant_method": "gptq", "bits": 3}, {"quant_method": ["fp8"]}, "fp8", {}])
def test_an_unknown_declared_quantisation_is_refused_instead_of_guessed(section):
    with pytest.raises(UnknownQuantisation, match="quantization_config"):
        declared_quantisation({"quantization_config": section})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("h99", "must be one of t4, a10"),
        ("h100:5g.50gb", "it has 1g.10gb"),
        ("t4:1g.2gb", "it has none"),
        ("", "must be one of t4"),
    ],
)
def test_an_unknown_device_is_refused_with_the_known_ones(name, says):
    with pytest.raises(UnknownDevice, match=says):
        find(name)


def test_a_device_without_mig_has_no_profiles():
    assert profiles_of("l4") == ()


@pytest.mark.parametrize(
    ("demand", "says"),
    [
        (Demand(0), "context must be a finite number above 0, got 0"),
        (Demand(-5), "context must be a finite number above 0, got -5"),
        (Demand(8193), "accepts at most 8192 tokens"),
        (Demand(100, 0), "concurrency must be a finite number above 0, got 0"),
        (Demand(100, 1, "int3"), "must be one of bf16, fp8, int8, int4, nvfp4"),
        (Demand(100, 1, "bf16", "int4"), "must be one of bf16, fp8, int8"),
    ],
)
def test_an_impossible_demand_is_refused(demand, says):
    with pytest.raises(SizingError, match=says):
        fit(parse_model(LLAMA), find("h100"), demand)


@pytest.mark.parametrize(("device", "degree", "says"), [("h100", 3, "must be one of 1, 2, 4, 8"), ("h100", 0, "degree must be a finite"),
                                                        ("h100:7g.80gb", 2, "accepted on a MIG slice is 1")])  # fmt: skip
def test_an_impossible_tensor_parallel_degree_is_refused(device, degree, says):
    with pytest.raises(Impossible, match=says):
        fit(parse_model(LLAMA), find(device), Demand(100), degree)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (Ask(100, prompt=101), "prompt 101 is longer than the context of 100"),
        (Ask(100, prompt=0), "prompt must be a finite number above 0, got 0"),
        (Ask(100, ttft_s=0), "ttft must be a finite number above 0, got 0"),
        (Ask(100, tpot_s=-1), "tpot must be a finite number above 0, got -1"),
        (Ask(100, degree=5), "degree 5"),
    ],
)
def test_a_contradictory_plan_is_refused(ask, says):
    with pytest.raises(Impossible, match=says):
        plan(parse_model(LLAMA), [find("h100")], ask)


def test_an_encoder_has_no_time_per_token():
    model = parse_model(published_model("google-bert/bert-base-uncased").config)
    with pytest.raises(Impossible, match="a bert generates no tokens"):
        plan(model, [find("t4")], Ask(512, tpot_s=0.1))


@pytest.mark.parametrize("prices", [{"h200": 1.0}, {"h100": -1.0}, {"h100": float("nan")}])
def test_a_price_for_nothing_in_the_plan_or_below_zero_is_refused(prices):
    with pytest.raises(Impossible, match=r"price (for|must)"):
        priced([find("h100")], prices)


@pytest.mark.parametrize(
    "act",
    [
        lambda: cost.dollars_per_million(-1, 10),
        lambda: cost.dollars_per_million(1, 0),
        lambda: cost.dollars_per_million(1, 10, 0),
        lambda: cost.dollars_per_million(1, 10, 1.1),
        lambda: cost.goodput(10, 1.5),
        lambda: cost.utilisation(1e9, 10, 1),
        lambda: cost.breakeven_tokens(cost.Monthly(1), 0),
        lambda: cost.breakeven_requests(cost.Monthly(-1), 1),
        lambda: cost.breakeven_requests(cost.Monthly(1, -1, 1), 1),
        lambda: cost.breakeven_requests(cost.Monthly(float("nan")), 1),
    ],
)
def test_impossible_money_is_refused(act):
    with pytest.raises(Impossible, match="must be"):
        act()
