"""OpenAI's own clients, for Python and for Node: they find the same in one replica."""

from __future__ import annotations

import shutil
from typing import Any, Final

import pytest
from clients.conftest import api
from support.servers.replica import NAME, Replica
from support.suite.environments import run_node, run_program

pytestmark = pytest.mark.clients

FOUND: Final = {
    "chat": {"same": True, "tokens": 8, "logprobs": 8},
    "structured": True,
    "called": ["weather", "number"],
    "refused": {"long": "context_length_exceeded", "unknown": "model_not_found"},
    "responses": {"ends": 1, "same": True},
    "texts": 4,
    "vectors": [8, 8],
    "models": [NAME],
}


def test_the_client_for_python_finds_what_it_expects(with_tools: Replica) -> None:
    found: Any = run_program("openai", api(with_tools), NAME)
    assert found == FOUND


@pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="needs node and npm")
def test_the_client_for_node_finds_what_it_expects(with_tools: Replica) -> None:
    found: Any = run_node("openai-node", api(with_tools), NAME)
    assert found == FOUND
