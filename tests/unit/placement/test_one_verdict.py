"""`pagoda plan`, `pagoda validate`, placement and the daemon give one verdict on every published model and device of the catalogue."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from pagoda_cli.validate import _verdicts
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.core.errors import ConfigRejected, ModelRejected
from pagoda_daemon.model.config import FAMILIES, parse_spec
from pagoda_daemon.model.weights import weight_bytes
from pagoda_daemon.runner.host import Memory
from pagoda_daemon.runner.kv_size import kv_shape, needs
from pagoda_placement.place import place
from pagoda_sizing.devices import catalogue
from pagoda_sizing.families import parse_model
from pagoda_sizing.host import DEVICE_CONTEXT
from pagoda_sizing.plan import Ask, Verdict, plan
from pagoda_sizing.platforms import products, slices
from pagoda_sizing.published import published
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


def test_what_is_called_served_is_what_the_daemon_has():
    assert dict(ARCHITECTURES) == {name: family.model_type for name, family in FAMILIES.items()}
