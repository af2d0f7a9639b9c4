"""What steps cost a device, against arithmetic by hand: operations, bytes read and bytes written."""

import pytest
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.messages import Computed, Ready, Stats, Tally
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.metrics import Counts, Exposition, ModelWork

LAYERS, HIDDEN, HEADS, KV_HEADS, WIDTH, INNER, VOCAB = 2, 64, 4, 2, 16, 128, 1000
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
}
MATRICES = LAYERS * (HIDDEN * (HEADS + 2 * KV_HEADS) * WIDTH + HIDDEN * HEADS * WIDTH + 3 * HIDDEN * INNER)
NORMS = LAYERS * 2 * HIDDEN + HIDDEN
HEAD = VOCAB * HIDDEN
COMPUTED = Computed(tokens=10, sampled=4, read=40, pairs=60)


def test_an_estimate_is_that_of_the_arithmetic():
    work = ModelWork.of(LLAMA, EngineConfig())
    found = work.estimate(COMPUTED, steps=5)
    per_pair = 4 * HEADS * WIDTH * LAYERS
    kv_bytes = 2 * 2 * KV_HEADS * WIDTH * LAYERS
    assert found.flops == 2 * 10 * (MATRICES + NORMS) + 2 * 4 * HEAD + per_pair * 60
    assert found.read_bytes == 5 * 2 * (MATRICES + NORMS + HEAD) + 40 * kv_bytes
    assert found.write_bytes == 10 * kv_bytes


def test_the_format_of_the_weights_counts():
    narrow, wide = (ModelWork.of(LLAMA, EngineConfig(dtype=dtype)).estimate(COMPUTED, 5) for dtype in ("bfloat16", "float32"))
    assert (wide.read_bytes, wide.write_bytes) == (2 * narrow.read_bytes, 2 * narrow.write_bytes)
    assert wide.flops == narrow.flops
    assert ModelWork.of(LLAMA, EngineConfig(quantization="int8")).estimate(COMPUTED, 5).read_bytes < narrow.read_bytes


def test_keys_and_values_of_8_bits_have_a_scale_per_head():
    found = ModelWork.of(LLAMA, EngineConfig(kv_dtype="float8")).estimate(COMPUTED, 5)
    assert found.write_bytes == 10 * 2 * KV_HEADS * (WIDTH + 4) * LAYERS


@pytest.mark.parametrize("config", [{}, {"model_type": "nobody's"}, LLAMA | {"hidden_size": "x"}, LLAMA | {"num_attention_heads": None}])
def test_a_model_that_sizing_does_not_know_has_no_estimate(config):
    assert ModelWork.of(config, EngineConfig()) is None


def test_the_estimate_is_exposed_once_the_model_is_loaded():
    replica = Replica(born=0.0, stats=Stats(steps=5), tally=Tally(computed=COMPUTED))
    exposition = Exposition("m", replica, Counts(), work=lambda: ModelWork.of(LLAMA, EngineConfig()))
    assert b"vllm:estimated_flops_per_gpu_total{" not in exposition.text(1.0, 1.0)
    replica.limits = Ready(64, 8, 16, 40, 2)
    assert b"vllm:estimated_flops_per_gpu_total{" in exposition.text(2.0, 2.0)
