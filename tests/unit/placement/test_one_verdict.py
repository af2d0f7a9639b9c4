"""`pagoda plan`, `pagoda validate`, placement and the daemon give one verdict on every published model and device of the catalogue."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from pagoda_cli.validate import _verdicts
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.errors import ConfigRejected, ModelRejected
from pagoda_daemon.model.config import FAMILIES, parse_spec
from pagoda_daemon.model.quantised import FORMATS, not_quantised, quantised_bytes
from pagoda_daemon.model.weights import weight_bytes
from pagoda_daemon.runner.host import Memory
from pagoda_daemon.runner.kv_size import kv_shape, needs
from pagoda_placement.model import of_config
from pagoda_placement.place import place
from pagoda_sizing.devices import catalogue
from pagoda_sizing.families import parse_model
from pagoda_sizing.host import DEVICE_CONTEXT
from pagoda_sizing.plan import Ask, Verdict, plan
from pagoda_sizing.platforms import platforms, products, slices
from pagoda_sizing.published import published, published_model
from pagoda_sizing.served import ARCHITECTURES, unserved
from support.harness.inventories import gpu, inventory, mig, question, spec

CONTEXT, ROWS = 4096, 64
KINDS = {kind: name for name, kind in ARCHITECTURES.items()}
MODELS = published()
DEVICES = [one for one in catalogue() if one.product.partition("-MIG-")[0] in products()]


@cache
def weights(own):
    """The same on every device; to lay them out took two thirds of the time."""
    return weight_bytes(own, torch.bfloat16)


def entry(device):
    return mig(device.profile) if device.profile else gpu(device.product)


def memory(device):
    """A profile of several products counts with the least memory, because the entry names no product."""
    return slices()[device.profile] if device.profile else products()[device.product]


def context(model):
    return min(CONTEXT, parse_model(model.config).max_context)


def wanted(model, device, **engine):
    return spec(entry(device), model=f"hf://{model.name}", context=context(model), requests=ROWS, minConcurrency=1, **engine)


def by_placement(model, device, **engine):
    return place(question(inventory(), wanted(model, device, **engine))).entry is not None


def by_validate(model, device, **engine):
    return not any(note.message.startswith("refused") for note in _verdicts(wanted(model, device, **engine)))


def by_plan(model, device):
    known = replace(device, memory_bytes=memory(device))
    (row,) = plan(parse_model(model.config), [known], Ask(context(model), degree=1))
    return not unserved(model.config) and row.verdict is Verdict.FITS


def by_daemon(model, device, **engine):
    """As the daemon counts on a device that nothing but its own context has taken from."""
    kind = model.config["model_type"]
    try:
        asked = {"maxModelLen": context(model), "maxConcurrency": ROWS, **engine}
        config = EngineConfig.model_validate(asked).at(cuda=True)
        own = parse_spec({**model.config, "architectures": [KINDS.get(kind, kind)]})
        there = Memory(memory(device), memory(device) - DEVICE_CONTEXT, limited=True, kind="device")
        kv_shape(config, needs(own, config, weights(own), 2), there)
    except (ConfigRejected, ModelRejected):
        return False
    return True


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_component_gives_one_verdict_on_every_device(model):
    verdicts = {device.name: {by(model, device) for by in (by_plan, by_placement, by_validate, by_daemon)} for device in DEVICES}
    assert {name: found for name, found in verdicts.items() if len(found) > 1} == {}


@pytest.mark.parametrize("tokens", [16, 8192, 65_536])
def test_the_tokens_of_a_step_that_are_asked_for_count_for_every_component(tokens):
    (model,) = (one for one in MODELS if one.name == "meta-llama/Llama-3.1-8B")
    by = (by_placement, by_validate, by_daemon)
    verdicts = {device.name: tuple(one(model, device, tokenBudget=tokens) for one in by) for device in DEVICES}
    assert {name: found for name, found in verdicts.items() if len(set(found)) > 1} == {}
    assert verdicts["l4"] == 3 * (tokens < 65_536,)


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"])
@pytest.mark.parametrize("kind", FORMATS)
def test_weights_in_fewer_bits_have_one_verdict_on_every_whole_device(kind, name):
    """An entry `mig` names no product: whether a slice has fp8 is the daemon's to say."""
    (model,) = (one for one in MODELS if one.name == name)
    own = parse_spec({**model.config, "architectures": [KINDS[model.config["model_type"]]]})
    capability = {one.product: one.capability for one in platforms().products}

    def by_daemon(device):
        config = EngineConfig.model_validate({"maxModelLen": context(model), "maxConcurrency": ROWS}).at(cuda=True)
        there = Memory(memory(device), memory(device) - DEVICE_CONTEXT, limited=True, kind="device")
        try:
            kv_shape(config, needs(own, config, quantised_bytes(own, torch.bfloat16, FORMATS[kind]), 2), there)
        except ConfigRejected:
            return False
        return not_quantised(own, kind, capability[device.product]) is None

    by = (by_placement, by_validate)
    whole = [device for device in DEVICES if not device.profile]
    verdicts = {device.name: {by_daemon(device), *(one(model, device, quantization=kind) for one in by)} for device in whole}
    assert {name: found for name, found in verdicts.items() if len(found) > 1} == {}
    served = {name for name, found in verdicts.items() if found == {True}}
    assert ("a10" in served, "l4" in served) == ((kind != "fp8", True) if "Llama" in name else (False, False))


@pytest.mark.parametrize("product", sorted({*products()} - {device.product for device in catalogue()}))
def test_of_products_that_plan_does_not_list_a_v100_is_refused_with_the_reason(product):
    asked = spec(gpu(product), model="hf://Qwen/Qwen3-0.6B", context=CONTEXT, requests=8, minConcurrency=1)
    placed = [one.why for one in place(question(inventory(), asked)).status.rejected]
    why = "the daemon's PyTorch is built for CUDA 13, which has no code for Volta"
    said = [note.message for note in _verdicts(asked)]
    assert (placed, said) == (([f"{product}: {why}"], [f"refused: {why}"]) if "V100" in product else ([], []))


def test_what_is_called_served_is_what_the_daemon_has():
    assert dict(ARCHITECTURES) == {name: family.model_type for name, family in FAMILIES.items()}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
            "rope_type 'longrope' is not supported; supported are default, linear",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters differs by layer (full_attention)"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object, got 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 10**400}}, "partial_rotary_factor must be a finite number above 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 2048, got 1000000000"),
        ({"vocab_size": 2**25}, "vocab_size must be at most 16777216, got 33554432"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not "),
        ({"auto_map": {"AutoModel": "own.Model"}}, "config.json has auto_map"),
    ],
)
def test_what_the_daemon_refuses_after_a_fetch_is_refused_before_it(changes, why):
    config = published_model("meta-llama/Llama-3.1-8B").config | {"architectures": ["LlamaForCausalLM"]} | changes
    with pytest.raises(ModelRejected) as refused:
        parse_spec(config)
    assert why in str(refused.value)
    assert why in of_config(config).unserved


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_a_rotary_embedding_that_the_daemon_computes_is_not_refused(kind):
    scaled = {"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 4096, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = published_model("meta-llama/Llama-3.1-8B").config | {"architectures": ["LlamaForCausalLM"], "rope_scaling": scaled}
    assert (parse_spec(config).layers, of_config(config).unserved) == (32, "")
