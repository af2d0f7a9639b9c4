"""The quickstart's object is valid by the contracts, and asks for what the demo's node has."""

import yaml
from pagoda_contracts.resources.service import InferenceService
from pagoda_contracts.units import parse_duration
from support.engine import tiny_model


def load():
    text = (tiny_model.EXAMPLES / "01-quickstart" / "llama-tiny.yaml").read_text()
    return InferenceService.model_validate(yaml.safe_load(text))


def test_the_quickstart_is_valid_and_serves_the_tiny_model():
    service = load()
    assert service.metadata.name == "llama-tiny"
    assert service.metadata.namespace == "", "kubectl's namespace decides"
    assert service.served_names == ("llama-tiny",)
    assert service.spec.model.uri == "pvc://llama-tiny"
    assert parse_duration(service.spec.drain.timeout) == 30


def test_the_quickstart_leaves_room_for_a_replacement_on_a_small_node():
    cpu = load().spec.accelerators[0].cpu
    assert cpu is not None
    assert cpu.cores == "250m"
