"""Matrices in 8 or 4 bits: which models and devices they are for, how they are read, and what a decoder of them computes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.gpu.load import warm_worker
from pagoda_daemon.model import quantised as model_quantised
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import FAMILIES, Experts
from pagoda_daemon.model.decoder import Decoder
from pagoda_daemon.model.loader import SINGLE, Reading, load_tensors
from pagoda_daemon.model.quantised import FORMATS, Quantiser, not_quantised, quantised, quantised_bytes
from pagoda_daemon.model.weights import Linear, allocate, destinations, linears, weight_bytes, with_linears
from pagoda_daemon.runner.forward import TorchForward
from pagoda_kernels.gpu.matrices.w4_weights import quantised_w4
from pagoda_kernels.reference import quantise_rows as judge
from pagoda_kernels.reference.linear_w4a16 import linear_w4a16
from pagoda_kernels.testing import device
from safetensors.torch import save_file
from support.engine.native_reference import shape, weights_of

EXPERTS = Experts(count=4, per_token=2, intermediate=48, normalised=True, names=FAMILIES["Qwen3MoeForCausalLM"].experts)


@pytest.mark.parametrize(
    ("changes", "kind", "capability", "told"),
    [
        ({}, "fp8", (8, 9), None),
        ({}, "int8", (8, 0), None),
        ({}, "fp8", None, None),
        ({}, "fp8", (8, 6), "needs compute capability 8.9, the device has 8.6"),
        ({}, "int4", (8, 0), None),
        ({}, "nvfp4", (9, 0), "nvfp4 is not built for a GPU; available are fp8, int8, int4"),
        ({"experts": EXPERTS, "sparse": (True, False)}, "int8", (9, 0), "not built for experts"),
        ({"intermediate": 100}, "int8", (9, 0), "multiples of 16"),
    ],
)
def test_what_cannot_be_quantised_is_told_before_a_byte_is_read(changes, kind, capability, told):
    why = not_quantised(shape(**changes), kind, capability)
    assert why is None if told is None else told in why


@dataclass(frozen=True, slots=True)
class Judged(Linear):
    """In float32: weights go through levels as a GPU's do, of 8 bits and rows as well, or of 4 bits (`kind` None)."""

    kind: torch.dtype | None

    def apply(self, rows):
        if self.kind is None:
            return linear_w4a16(rows, quantised_w4(self.weight.half()), self.bias).float()
        levels = [judge.quantise_rows(part, self.kind) for part in (rows, self.weight)]
        return judge.linear_w8a8(*levels, self.bias).float()


def a_prompt(count, vocab):
    ids = np.random.default_rng(1).integers(3, vocab, count).astype(np.int32)
    table, places = np.arange(-(-count // 16), dtype=np.int32)[None], np.arange(count, dtype=np.int32)
    return StepPlan(0, np.zeros(1, np.int32), np.array([0, count], np.int32), ids, places, table, np.ones(1, np.bool_))


@pytest.mark.deep
@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [("fp8", torch.float8_e4m3fn, torch.float32), ("int8", torch.int8, torch.float32), ("int4", None, torch.float16)],
)
def test_a_decoder_computes_what_its_levels_stand_for(name, kind, dtype):
    spec = shape(qkv_bias=True, layers=1, windows=(None,), sparse=(False,))
    exact = allocate(spec, torch.float32)
    for part, place in destinations(spec, exact).items():
        place.copy_(destinations(spec, weights_of(spec))[part])
    with torch.device(device()):
        there = allocate(spec, dtype)
    for part, place in destinations(spec, there).items():
        place.copy_(destinations(spec, exact)[part])
    limits = WorkerLimits(4, 16, spec.vocab_size, 64)
    ours = warm_worker(spec, quantised(there, FORMATS[name]), EngineConfig(max_concurrency=2), limits, lambda _share: None)
    judged = replace(
        exact, layers=tuple(with_linears(layer, lambda linear: Judged(linear.weight, linear.bias, kind)) for layer in exact.layers)
    )
    theirs = TorchForward(Decoder(spec, judged, 64), KvCache(spec, 5, 16, torch.float32))
    plan, wanted = a_prompt(20, spec.vocab_size), np.arange(20)
    with torch.inference_mode():
        found, right = ours.forward.logits(plan, wanted).cpu(), theirs.logits(plan, wanted)
    # A number at the border of two levels falls to either, by the last bit of a sum, and moves all behind it: 1.9 % in fp8.
    assert (found - right).norm() < 0.03 * right.norm()


@pytest.mark.deep
@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_is_quantised_when_its_last_part_is_read_and_its_bf16_bytes_are_given_back(tmp_path, name, monkeypatch):
    spec = shape(layers=1, windows=(None,), sparse=(False,), qkv_bias=True)
    written = destinations(spec, weights_of(spec))
    save_file({part: tensor.clone() for part, tensor in written.items()}, tmp_path / SINGLE)
    place = torch.device(device())
    reading, given_back = Quantiser(spec, torch.bfloat16, place, FORMATS[name]), []
    monkeypatch.setattr(model_quantised, "forget", lambda weight: given_back.append(weight.shape[0]))
    seen = []

    def filled(part):
        reading.filled(part)
        seen.append((part.removeprefix("model.layers.0."), len(given_back)))

    load_tensors(tmp_path, reading.places, lambda _share: None, Reading(filled))
    found = reading.weights()
    assert sorted(given_back) == sorted(len(linear.weight) for linear in linears(weights_of(spec).layers[0]))
    parts = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
    assert max(dict(seen)[part] for part in parts) - min(dict(seen)[part] for part in parts) == 1
    expected = quantised(with_all(spec, written, place), FORMATS[name])
    for ours, right in zip(linears(found.layers[0]), linears(expected.layers[0]), strict=True):
        assert torch.equal(ours.weight.view(torch.uint8), right.weight.view(torch.uint8))
        assert torch.equal(ours.scales, right.scales)
        assert (ours.bias is None) == (right.bias is None) or torch.equal(ours.bias, right.bias)
    assert torch.equal(found.head, expected.head)
    assert torch.equal(found.layers[0].mlp_norm, expected.layers[0].mlp_norm)


def with_all(spec, written, place):
    with place:
        weights = allocate(spec, torch.bfloat16)
    for part, tensor in destinations(spec, weights).items():
        tensor.copy_(written[part])
    return weights


@pytest.mark.parametrize(("name", "scales"), [("fp8", 0), ("int8", 0), ("int4", 1)])
def test_a_quantised_model_has_fewer_bytes_of_its_matrices_and_all_of_the_rest(name, scales):
    spec = shape(hidden=512, intermediate=1024, kv_heads=4, head_dim=32)
    levels = 2 * (512 * 384 + 128 * 512 + 512 * 2048 + 512 * 1024)
    outputs = 2 * (384 + 512 + 2048 + 512)
    found = weight_bytes(spec, torch.bfloat16) - quantised_bytes(spec, torch.bfloat16, FORMATS[name])
    assert found == (levels * 3 // 2 - levels // 128 * 2 if scales else levels - 4 * outputs)
