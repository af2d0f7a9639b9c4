"""Quantised checkpoints on a GPU: matrices stay as they are stored, in the bytes that were counted, and the decoder computes with them."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import torch
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.batch import StepPlan, WorkerLimits
from pagoda_daemon.gpu.load import compile_all, warm_worker
from pagoda_daemon.gpu.weights import bytes_of, form_of, not_in_format, read_weights
from pagoda_daemon.model import as_stored
from pagoda_daemon.model.attention import KvCache
from pagoda_daemon.model.config import read_spec
from pagoda_daemon.model.decoder import Decoder
from pagoda_daemon.model.quantised import Linear4, Linear8
from pagoda_daemon.model.weights import allocate, destinations, linears
from pagoda_daemon.runner.forward import TorchForward
from pagoda_kernels.gpu.matrices.w4_weights import Weights4
from pagoda_kernels.reference.linear_w4a16 import dequantised_w4
from pagoda_kernels.testing import device
from support.engine.quantised_files import FORMATS, plain_tensors, quantised_tensors, write_model

BLOCKS = "fp8-uneven"
HELD = [name for name, form in FORMATS.items() if form.form != "bf16" and "block" not in name and name != BLOCKS]
PLACE = device()


def numbers(linear):
    """What a linear map's weights stand for, in float64."""
    if isinstance(linear, Linear4):
        return dequantised_w4(Weights4(linear.weight, linear.scales, linear.zeros, linear.outputs, linear.inputs))
    if isinstance(linear, Linear8):
        return linear.weight.cpu().double() * linear.scales.cpu().double()[:, None]
    return linear.weight.cpu().double()


SMALL = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 4}  # the interpreter takes 16 ms for each output


def model(folder, name, kept=("lm_head",), **changes):
    """The spec, and weights whose places hold the exact numbers in float32."""
    config = {"num_hidden_layers": 1} | changes
    tensors, exact = quantised_tensors(FORMATS[name], plain_tensors(**config), kept)
    write_model(folder, tensors, FORMATS[name], **config)
    spec = read_spec(folder)
    wide = allocate(spec, torch.float32)
    for part, place in destinations(spec, wide).items():
        place.copy_(exact[part])
    return spec, wide


def read(folder, spec):
    form = form_of(spec, EngineConfig(), PLACE)
    return read_weights(folder, spec, PLACE, form, lambda _share: None)


def held_bytes(value):
    """Bytes of every tensor in a tree of dataclasses."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(map(held_bytes, value))
    return sum(held_bytes(getattr(value, field.name)) for field in fields(value)) if is_dataclass(value) else 0


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("name", [*HELD, pytest.param(BLOCKS, marks=pytest.mark.deep)])
def test_matrices_stand_for_the_numbers_of_the_checkpoint_in_the_bytes_that_were_counted(name, tmp_path, monkeypatch):
    monkeypatch.setattr(as_stored, "_PART", 128)  # pieces that begin within q, and end within k
    spec, exact = model(tmp_path, name, **(SMALL if name == BLOCKS else {}))
    found = read(tmp_path, spec)
    for ours, right in zip(linears(found.layers[0]), linears(exact.layers[0]), strict=True):
        assert isinstance(ours, Linear4 if FORMATS[name].form == "int4" else Linear8)
        wanted = right.weight.double()
        if name == BLOCKS:  # rounded again: one fp8 number has 3 bits behind the point
            assert 0.01 < ((numbers(ours) - wanted).norm() / wanted.norm()) < 0.03
        else:
            assert torch.equal(numbers(ours).float(), right.weight)
    assert torch.equal(found.head.cpu(), exact.head.bfloat16())
    assert torch.equal(found.layers[0].mlp_norm.cpu(), exact.layers[0].mlp_norm.bfloat16())
    assert bytes_of(tmp_path, spec, FORMATS[name].form) == held_bytes(found)


@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("name", ["awq-64", "gptq-32"])
def test_groups_that_no_kernel_knows_are_read_as_bf16(name, tmp_path):
    spec, exact = model(tmp_path, name)
    assert form_of(spec, EngineConfig(), PLACE) is None
    found = read(tmp_path, spec)
    assert all(torch.equal(ours.weight.cpu(), right.weight.bfloat16()) for ours, right in zip(*map(maps, (found, exact)), strict=True))
    assert bytes_of(tmp_path, spec, None) == held_bytes(found)


def maps(weights):
    return [linear for layer in weights.layers for linear in linears(layer)]


@pytest.mark.usefixtures("honest")
def test_a_map_with_a_part_that_is_not_quantised_is_bf16_as_a_whole(tmp_path):
    spec, exact = model(tmp_path, "gptq", kept=("lm_head", "model.layers.0.self_attn.k_proj", "model.layers.0.mlp.down_proj"))
    found = read(tmp_path, spec)
    assert [type(linear).__name__ for linear in maps(found)] == ["Linear", "Linear4", "Linear4", "Linear"]
    for ours, right in zip(maps(found), maps(exact), strict=True):
        wanted = right.weight if isinstance(ours, Linear4) else right.weight.bfloat16()
        assert torch.equal(numbers(ours), wanted.double())
    assert bytes_of(tmp_path, spec, "int4") == held_bytes(found)


@pytest.mark.usefixtures("honest")
def test_a_quantised_head_is_read_as_bf16(tmp_path):
    spec, exact = model(tmp_path, "awq", kept=())
    assert torch.equal(read(tmp_path, spec).head.cpu(), exact.head.bfloat16())


@pytest.mark.parametrize(
    ("name", "capability", "form"),
    [
        ("fp8", (8, 9), "fp8"),
        ("fp8", (8, 6), None),
        ("fp8-blocks", (9, 0), "fp8"),
        ("compressed-int8", (8, 0), "int8"),
        ("awq", (8, 0), "int4"),
        ("awq-64", (9, 0), None),
    ],
)
def test_a_device_holds_what_it_can_multiply(name, capability, form, tmp_path):
    spec, _ = model(tmp_path, name)
    assert as_stored.held_form(spec, capability) == form


def test_another_format_than_the_stored_one_is_refused_by_its_name(tmp_path):
    spec, _ = model(tmp_path, "fp8")
    assert not_in_format(spec, EngineConfig(quantization="fp8"), PLACE) is None
    assert "int4 contradicts the checkpoint, whose weights are stored in fp8" in not_in_format(
        spec, EngineConfig(quantization="int4"), PLACE
    )


def a_prompt(count):
    ids = np.random.default_rng(1).integers(3, 200, count).astype(np.int32)
    table, places = np.arange(-(-count // 16), dtype=np.int32)[None], np.arange(count, dtype=np.int32)
    return StepPlan(0, np.zeros(1, np.int32), np.array([0, count], np.int32), ids, places, table, np.ones(1, np.bool_))


@pytest.mark.deep
@pytest.mark.usefixtures("honest")
@pytest.mark.parametrize("name", ["compressed-fp8", "fp8-blocks", "awq", "compressed-int4"])
def test_a_decoder_of_stored_matrices_computes_as_one_of_their_numbers(name, tmp_path):
    spec, exact = model(tmp_path, name, **SMALL)
    limits = WorkerLimits(4, 16, spec.vocab_size, 64)
    ours = warm_worker(spec, read(tmp_path, spec), EngineConfig(max_concurrency=2), limits, lambda _share: None)
    theirs = TorchForward(Decoder(spec, exact, 64), KvCache(spec, 5, 16, torch.float32))
    plan, wanted = a_prompt(10), np.arange(10)
    with torch.inference_mode():
        found, right = ours.forward.logits(plan, wanted).float().cpu(), theirs.logits(plan, wanted)
    # Rows are bf16; with matrices of 8 bits they have 8 bits as well, of which fp8 has 3 behind the point.
    bound = 0.02 if FORMATS[name].form == "int4" else 0.05
    assert (found - right).norm() < bound * right.norm()


def test_every_kind_of_matrix_is_compiled_before_the_first_request(tmp_path, monkeypatch):
    """Not those of the first layer alone: another may have zeros, or be an exception."""
    spec, _ = model(tmp_path, "gptq-asymmetric", num_hidden_layers=2, kept=("lm_head", "model.layers.0.mlp.down_proj"))
    weights, warmed = read(tmp_path, spec), []
    monkeypatch.setattr(Linear4, "warm", lambda linear: warmed.append(tuple(linear.scales.shape)))
    worker = type("Worker", (), {"forward": type("Forward", (), {"decoder": type("Decoder", (), {"weights": weights})})})
    for part in ("warm", "_warm_sizes"):
        monkeypatch.setattr(f"pagoda_daemon.gpu.load.{part}", lambda *_: None)
    compile_all(worker, 16)
    assert len(warmed) == 4  # qkv, output, gate_up of both, and down of the second
