"""DaemonConfig, route header, YAML writer and wire snapshots."""

import json
import re
from pathlib import Path

import pytest
import yaml
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts import gateway_metrics, metrics
from pagoda_contracts.crds.yamltext import dump_yaml
from pagoda_contracts.launch import DaemonConfig
from pagoda_contracts.pb import daemon_pb2, demand_pb2, fetch_pb2, inference_pb2
from pagoda_contracts.route import Route, format_route, parse_route

DATA = Path(__file__).parents[2] / "data/v0.1"


def test_daemon_config_reads_the_snapshot_and_writes_it_back():
    text = (DATA / "daemon-config.json").read_text()
    config = DaemonConfig.model_validate_json(text)
    assert config.unknown_fields() == ()
    assert json.loads(config.model_dump_json(by_alias=True, exclude_none=True)) == json.loads(text)


def test_daemon_config_names_unknown_fields_at_any_depth():
    config = DaemonConfig.model_validate({"model": {"path": "/m", "servedNames": ["a"], "later": 1}, "new": True, "engine": {"fast": 1}})
    assert config.unknown_fields() == ("engine.fast", "model.later", "new")


def test_daemon_config_names_fields_that_are_known_and_not_acted_on():
    config = DaemonConfig.model_validate(
        {"model": {"path": "/m", "servedNames": ["a"]}, "engine": {"cpuOffloadBytes": 1, "maxModelLen": 16, "tensorParallel": 2}}
    )
    assert config.unknown_fields() == ("engine.cpuOffloadBytes", "engine.tensorParallel")


PROTOS = {"daemon": daemon_pb2, "demand": demand_pb2, "fetch": fetch_pb2, "inference": inference_pb2}


@pytest.mark.parametrize("name", PROTOS)
def test_proto_fields_keep_their_numbers(name):
    described = {
        message.name: {field.name: [field.number, field.type] for field in message.fields}
        for message in PROTOS[name].DESCRIPTOR.message_types_by_name.values()
    }
    assert described == json.loads((DATA / f"{name}-proto.json").read_text())


def test_proto_enums_keep_their_numbers():
    described = {
        enum.name: {value.name: value.number for value in enum.values}
        for proto in PROTOS.values()
        for enum in proto.DESCRIPTOR.enum_types_by_name.values()
    }
    assert described == json.loads((DATA / "proto-enums.json").read_text())
    assert all(min(numbers, key=numbers.get).endswith("_UNSPECIFIED") for numbers in described.values())


def test_a_reader_of_v0_1_skips_what_came_later_and_a_later_one_reads_v0_1():
    """Bytes of the first slice: sequence 7, phase READY, running 3; then a field number that nobody has."""
    first = bytes([0x08, 7, 0x18, 4, 0x50, 3])
    assert daemon_pb2.State.FromString(first) == daemon_pb2.State(sequence=7, phase=daemon_pb2.PHASE_READY, running=3)
    assert daemon_pb2.State.FromString(first + bytes([0xF8, 0x3E, 1])).running == 3


def test_metric_names_and_labels_are_what_exposition_allows_and_stand_once():
    families = (*metrics.DAEMON, *gateway_metrics.GATEWAY, *metrics.OPERATOR)
    assert len({family.name for family in families}) == len(families)
    for family in families:
        assert re.fullmatch(r"(vllm:|pagoda_|http_|process_|llm_d_epp_|inference_pool_|inference_extension_)[a-z0-9_]+", family.name)
        if family is not metrics.ITERATION_TOKENS:  # vLLM's own slip, which its dashboards read
            assert not family.name.endswith(("_total", "_bucket", "_sum", "_count"))
        assert family.help
        assert list(family.buckets) == sorted(set(family.buckets))
        assert bool(family.buckets) == (family.kind == "histogram")


def test_state_survives_its_wire():
    state = daemon_pb2.State(sequence=7, phase=daemon_pb2.PHASE_READY, served_names=["a", "b"], running=3)
    assert daemon_pb2.State.FromString(state.SerializeToString()) == state
    assert json_format.MessageToDict(state)["phase"] == "PHASE_READY"


@given(st.integers(0, 255), st.integers(1, 65535), st.integers(0, 10**6), st.integers(1, 9))
def test_route_header_round_trips(octet, port, held_ms, attempt):
    route = Route(f"10.1.0.{octet}:{port}", "least-loaded", held_ms, attempt)
    assert parse_route(format_route(route)) == route


@pytest.mark.parametrize(
    "value", ["", "endpoint=a", "endpoint=a; reason=b; held_ms=1; attempt=1; x=2", "endpoint=a b; reason=b; held_ms=1; attempt=1"]
)
def test_malformed_route_headers_are_refused(value):
    with pytest.raises(ValueError, match="route header"):
        parse_route(value)


PRINTABLE = st.text(st.characters().filter(str.isprintable) | st.just("\n"), min_size=1, max_size=12)
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | PRINTABLE
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3), max_leaves=12)


@pytest.mark.deep
@given(st.dictionaries(PRINTABLE, VALUES, min_size=1, max_size=4))
def test_yaml_text_reads_back_as_the_same_value(value):
    assert yaml.safe_load(dump_yaml(value)) == value


def test_yaml_text_refuses_what_no_reader_would_take():
    with pytest.raises(ValueError, match="not printable"):
        dump_yaml({"a": "\x7f"})
