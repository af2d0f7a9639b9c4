"""litellm as the judge: a context overflow is the error that it falls back on, and streams, tools and embeddings are what it expects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from clients.conftest import api
from support.servers.replica import NAME, Replica, replica_config, start_replica
from support.suite.environments import run_program

pytestmark = [pytest.mark.clients, pytest.mark.full]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    with start_replica(replica_config(tmp_path_factory.mktemp("short"), step_ms=0.0, engine={"max_model_len": 64})) as replica:
        yield replica


@pytest.fixture(scope="module")
def output(short: Replica, with_tools: Replica) -> Any:
    return run_program("litellm", api(short), NAME, api(with_tools), NAME)


def test_a_context_overflow_is_litellms_own_error(output: Any) -> None:
    assert output["refused"]["error"] == "ContextWindowExceededError"
    assert "This model's maximum context length is 64 tokens" in output["refused"]["message"]


def test_the_router_falls_back_to_the_longer_context(output: Any) -> None:
    assert output["fallback"]["prompt_tokens"] > 64
    assert output["fallback"]["completion_tokens"] == 4


def test_a_stream_is_the_whole_answer_in_pieces(output: Any) -> None:
    assert output["streamed"] == {"same": True, "completion_tokens": 8}


def test_a_required_tool_is_called(output: Any) -> None:
    assert output["called"][1:] == ["now"]


def test_inputs_are_embedded(output: Any) -> None:
    assert output["embedded"] == [8, 8]
