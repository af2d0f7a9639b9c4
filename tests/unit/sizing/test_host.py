"""The least memory on CPU against the daemon's own word: what it refuses the daemon refuses, and it is most of what the daemon wants."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.model.config import FAMILIES, parse_spec
from pagoda_daemon.model.packed import KINDS, packed_weight_bytes
from pagoda_daemon.model.weights import weight_bytes
from pagoda_daemon.runner.host import Memory
from pagoda_daemon.runner.kv_size import kv_shape, needs
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.host import Launch, least_memory
from pagoda_sizing.published import published
from support.suite.profiles import examples

LOADABLE = {family.model_type: name for name, family in FAMILIES.items()}
PUBLISHED = [entry for entry in published() if entry.config["model_type"] in LOADABLE]
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@some.composite
def configs(draw):
    """A config.json as publishers write them; keys that they omit are omitted."""
    kind, kv_heads, group = draw(some.sampled_from(sorted(LOADABLE))), draw(some.integers(1, 8)), draw(some.integers(1, 4))
    head_dim, layers = 2 * draw(some.integers(1, 64)), draw(some.integers(1, 6))
    found = {
        "model_type": kind,
        "architectures": [LOADABLE[kind]],
        "hidden_size": kv_heads * group * head_dim,
        "head_dim": head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "intermediate_size": draw(some.integers(1, 8192)),
        "vocab_size": draw(some.integers(1, 200_000)),
        "max_position_embeddings": draw(some.sampled_from([1, 100, 2047, 2048, 2049, 4096, 32_768, 131_072])),
        "tie_word_embeddings": draw(some.booleans()),
        "attention_bias": draw(some.booleans()),
        "mlp_bias": draw(some.booleans()),
        "use_sliding_window": draw(some.booleans()),
        "max_window_layers": draw(some.integers(0, layers)),
        "num_experts" if kind == "qwen3_moe" else "num_local_experts": draw(some.integers(1, 4)),
        "num_experts_per_tok": 1,
        "moe_intermediate_size": draw(some.integers(1, 2048)),
    }
    if kind not in ("mixtral", "qwen3_moe"):
        found = {key: value for key, value in found.items() if "experts" not in key}
    window = draw(some.sampled_from(["absent", None, 1, 512, 4096]))
    return found if window == "absent" else {**found, "sliding_window": window}


@some.composite
def engines(draw):
    return EngineConfig(
        max_model_len=draw(some.none() | some.integers(1, 40_000)),
        max_concurrency=draw(some.sampled_from([1, 8, 64, 600])),
        dtype=draw(some.sampled_from(sorted(DTYPES))),
        kv_bytes=draw(some.none() | some.integers(1, 1 << 34)),
        quantization=draw(some.sampled_from([None, None, "int8"])),
        block_size=draw(some.sampled_from([16, 32])),
    )


def launch(engine):
    return Launch(
        quantisation=engine.quantization or "bf16",
        item_bytes=DTYPES[engine.dtype].itemsize,
        context=engine.max_model_len,
        cache_bytes=engine.kv_bytes,
        concurrency=engine.max_concurrency,
        tokens=engine.token_budget,
    )


def terms(config, engine):
    """As the daemon counts: by torch, and by the native ops where these might do it."""
    spec, dtype = parse_spec(config), DTYPES[engine.dtype]
    if engine.quantization is None:
        yield needs(spec, engine, weight_bytes(spec, dtype), dtype.itemsize)
    if engine.dtype == "bfloat16":
        yield needs(spec, engine, packed_weight_bytes(spec, KINDS[engine.quantization]), 2, 4)


def starts(engine, own, memory):
    try:
        kv_shape(engine, own, Memory(memory, memory, limited=True))
    except ConfigRejected:
        return False
    return True


def loadable(entry):
    raw = {key: value for key, value in entry.config.items() if key != "quantization_config"}
    return {**raw, "architectures": [LOADABLE[raw["model_type"]]]}


def daemons_least(engine, own):
    low, high = 0, 1 << 48
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if starts(engine, own, middle) else (middle, high)
    return high


@pytest.mark.deep
@settings(deadline=None, max_examples=examples(150))
@given(config=configs(), engine=engines())
def test_a_daemon_never_starts_in_less(config, engine):
    try:
        model = parse_model(config)
    except SizingError:
        return
    least = least_memory(model, launch(engine))
    for own in terms(config, engine):
        assert not starts(engine, own, least - 1)


@pytest.mark.parametrize("entry", PUBLISHED, ids=[entry.name for entry in PUBLISHED])
@pytest.mark.parametrize("engine", [EngineConfig(), EngineConfig(max_concurrency=8, max_model_len=2048), EngineConfig(kv_bytes=1 << 30)])
def test_it_is_most_of_what_the_daemon_asks_for(entry, engine):
    config = loadable(entry)
    least = least_memory(parse_model(config), launch(engine))
    assert all(least >= 0.85 * daemons_least(engine, own) for own in terms(config, engine))


@pytest.mark.parametrize("entry", PUBLISHED, ids=[entry.name for entry in PUBLISHED])
@pytest.mark.parametrize("more", [{}, {"quantization": "int8"}, {"dtype": "float32"}, {"kv_bytes": 1 << 30}])
@pytest.mark.parametrize("omitted", ["", "sliding_window"])
def test_it_is_no_more_for_published_models_at_their_longest(entry, more, omitted):
    config = {key: value for key, value in loadable(entry).items() if key != omitted}
    model = parse_model(config)
    engine = EngineConfig(max_model_len=model.max_context, **more)
    least = least_memory(model, launch(engine))
    assert not any(starts(engine, own, least - 1) for own in terms(config, engine))


def test_a_window_s_cache_holds_the_tokens_of_a_step_too():
    """The daemon gives back what left the window after a step, not before: with long steps these tokens are most of the cache."""
    config = {
        "model_type": "mistral",
        "architectures": [LOADABLE["mistral"]],
        "hidden_size": 256,
        "head_dim": 32,
        "num_hidden_layers": 32,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 256,
        "vocab_size": 1000,
        "max_position_embeddings": 32_768,
        "sliding_window": 64,
    }
    engine = EngineConfig(max_model_len=32_768, token_budget=4096)
    least = least_memory(parse_model(config), launch(engine))
    assert all(least >= 0.85 * daemons_least(engine, own) for own in terms(config, engine))


def test_no_requests_are_refused():
    with pytest.raises(SizingError):
        least_memory(parse_model(PUBLISHED[0].config), Launch(concurrency=0))
