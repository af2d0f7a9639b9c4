"""Replicas for third-party clients: the trained tiny model on a real engine, and a simulated device whose template knows tools."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pagoda_contracts.launch import DaemonConfig, EngineConfig, Listen, ModelConfig
from support.engine.tiny_model import tiny_model
from support.servers.replica import Replica, replica_config, start_replica

TINY = "tiny"
# Tools are shown, and calls and their results are written out: what the hermes form of calls is recognised by.
TEMPLATE_WITH_TOOLS = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %} in <tool_call>{% endif %}"
    "{% for message in messages %}{{ message['role'] + ':' + (message['content'] or '') }}"
    "{% for call in message.tool_calls %}{{ call.function.name + (call.function.arguments | tojson) }}{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def trained() -> Iterator[Replica]:
    """The examples' model, which says its answers by heart."""
    config = DaemonConfig(
        model=ModelConfig(path=str(tiny_model()), served_names=(TINY,)),
        engine=EngineConfig(dtype="float32", threads=1, max_concurrency=16, kv_bytes=64 * 2**20),
        listen=Listen(host="127.0.0.1", http=0, grpc=0, probes=0, run_dir=tempfile.mkdtemp(prefix="pagoda-test-")),
    )
    with start_replica(config) as replica:
        yield replica


@pytest.fixture(scope="module")
def with_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """Its tokens are chosen by chance among those that a grammar allows: harsher than a model that has learnt tools."""
    config = replica_config(tmp_path_factory.mktemp("tools"), step_ms=0.0, engine={"max_model_len": 4096})
    (Path(config.model.path) / "chat_template.jinja").write_text(TEMPLATE_WITH_TOOLS)
    with start_replica(config) as replica:
        yield replica


def api(replica: Replica) -> str:
    """The base URL that clients are given."""
    return f"http://{replica.http}/v1"
