"""What 0.1 put on the wires is understood today, and what is written today by 0.1: protos, gRPC methods, DaemonConfig, words.

`tests/data/v0.1` holds them as they were; a break of each kind is planted below and found."""

import json
import re
from pathlib import Path

import pytest
from pagoda_contracts import names
from pagoda_contracts.launch import DaemonConfig
from support.judges.wire_rules import compiled, proto_breaks, schema_breaks, word_breaks

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests/data/v0.1"
PROTOS = ROOT / "contracts/proto/pagoda/v1"
WORDS = json.loads((DATA / "words.json").read_text())
SCHEMA = json.loads((DATA / "daemon-config-schema.json").read_text())


@pytest.fixture(scope="module")
def before():
    return compiled(DATA / "proto")


def planted(tmp_path, file, old, new):
    """Today's protos with one change."""
    for proto in PROTOS.glob("*.proto"):
        text = proto.read_text()
        if proto.name == file:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (tmp_path / proto.name).write_text(text)
    return compiled(tmp_path)


def test_protos_break_nothing_that_0_1_said(before):
    assert proto_breaks(before, compiled(PROTOS)) == []
    assert sum(len(message.field) for file in before.file for message in file.message_type) > 100


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("daemon.proto", "uint64 epoch = 3;\n  // Uid", "uint64 epoch = 9;\n  // Uid", "SetStateRequest.epoch = 3 is 9 now"),
        ("daemon.proto", "  uint32 waiting = 11;\n", "", "State.waiting = 11 is gone"),
        ("daemon.proto", "  uint32 waiting = 11;\n", "  uint32 held = 11;\n", "State.waiting = 11 is held now"),
        ("daemon.proto", "uint64 step_age_ms = 31", "uint32 step_age_ms = 31", "State.step_age_ms = 31 was"),
        ("daemon.proto", "repeated string served_names = 5", "string served_names = 5", "State.served_names = 5 was"),
        ("daemon.proto", "repeated Adapter adapters = 1", "repeated AdapterState adapters = 1", "SetAdaptersRequest.adapters = 1 was"),
        ("daemon.proto", "PHASE_DEGRADED = 7", "PHASE_DEGRADED = 8", "Phase.PHASE_DEGRADED = 7 is 8 now"),
        ("daemon.proto", "  TARGET_SERVING = 1;\n", "", "Target.TARGET_SERVING = 1 is gone now"),
        ("demand.proto", "package pagoda.v1;", "package pagoda.v2;", "message ServiceDemand is gone"),
        ("demand.proto", "  bool wake = 12;\n", "  optional bool wake = 12;\n", "ServiceDemand.wake = 12 was"),
        ("inference.proto", "  oneof event {\n", "  oneof other {\n", "GenerateResponse.accepted = 1 was"),
        ("fetch.proto", "message FetchProgress", "message Progress", "message FetchProgress is gone"),
        ("inference.proto", "repeated uint32 ids = 2;", "repeated uint32 ids = 2 [packed = false];", "Tokens.ids = 2 was"),
    ],
)
def test_a_planted_break_of_a_proto_is_found(before, tmp_path, file, old, new, message):
    assert [line for line in proto_breaks(before, planted(tmp_path, file, old, new)) if line.startswith(message)]


def test_what_is_added_to_a_proto_breaks_nothing(before, tmp_path):
    assert (
        proto_breaks(before, planted(tmp_path, "daemon.proto", "  string version = 4;\n", "  string version = 4;\n  bool later = 999;\n"))
        == []
    )


def test_every_word_of_0_1_is_spelled_as_then():
    """Among them all gRPC methods: that 0.1 may call one means that it is there."""
    assert word_breaks(WORDS, vars(names)) == []
    methods = {word for word in WORDS.values() if re.fullmatch(r"/pagoda\.v1\.\w+/\w+", str(word))}
    assert methods == {
        "/pagoda.v1.Daemon/WatchState",
        "/pagoda.v1.Daemon/SetState",
        "/pagoda.v1.Daemon/SetAdapters",
        "/pagoda.v1.Inference/Generate",
        "/pagoda.v1.Demand/Watch",
        "/pagoda.v1.Fetch/Fetch",
    }


@pytest.mark.parametrize("name", ["GRPC_SET_STATE", "ANNOTATION_DRAIN_DEADLINE", "PORT_DAEMON_GRPC"])
def test_a_word_that_is_gone_or_respelled_is_found(name):
    without = {key: word for key, word in vars(names).items() if key != name}
    assert len(word_breaks(WORDS, without)) == len(word_breaks(WORDS, without | {name: "other"})) == 1


def test_daemon_config_means_what_it_meant_to_0_1():
    assert schema_breaks(SCHEMA, DaemonConfig.model_json_schema(by_alias=True)) == []


def engine(schema):
    return schema["$defs"]["EngineConfig"]


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (lambda schema: engine(schema)["properties"].pop("blockSize"), "EngineConfig.blockSize is gone"),
        (lambda schema: engine(schema)["properties"].update(blockSize={"type": "string"}), "EngineConfig.blockSize was"),
        (lambda schema: engine(schema)["properties"]["toolParser"]["anyOf"][0]["enum"].remove("hermes"), "EngineConfig.toolParser was"),
        (lambda schema: schema["properties"]["engine"]["default"].update(other=1), "engine was"),
        (lambda schema: engine(schema).update(required=["blockSize"]), "EngineConfig.blockSize is demanded, and was not"),
        (lambda schema: schema.update(required=[]), "model may be left out, which a reader of before refuses"),
        (lambda schema: schema["$defs"].pop("AuthConfig"), "AuthConfig is gone"),
        (lambda schema: schema.update(additionalProperties=False), "the whole takes other unknown fields than before"),
    ],
)
def test_a_planted_break_of_daemon_config_is_found(plant, message):
    schema = DaemonConfig.model_json_schema(by_alias=True)
    plant(schema)
    assert [line for line in schema_breaks(SCHEMA, schema) if line.startswith(message)]
