"""What applications are built with: each library talks to a replica in its own way, and gets the objects that it promises its users."""

from __future__ import annotations

from typing import Any

import pytest
from clients.conftest import api
from support.servers.replica import NAME, Replica
from support.suite.environments import run_program

pytestmark = [pytest.mark.clients, pytest.mark.full]


def output(suite: str, replica: Replica) -> Any:
    return run_program(suite, api(replica), NAME)


def test_instructor_gets_objects_in_each_of_its_modes(with_tools: Replica) -> None:
    found = output("instructor", with_tools)
    assert found["asked"] == {"JSON_SCHEMA": "Trip", "TOOLS": "Trip", "TOOLS_STRICT": "Trip"}
    assert found["partial"] is True


def test_langchain_streams_calls_tools_and_gets_objects(with_tools: Replica) -> None:
    assert output("langchain", with_tools) == {
        "streamed": {"same": True, "usage": 8},
        "with_tools": {"names": ["weather"], "after": True},
        "structured": {"json_schema": "Place", "function_calling": "Place"},
        "several": 4,
        "text": True,
        "vectors": [8, 8],
    }


def test_pydantic_ai_gets_native_output_from_an_agent_with_tools(with_tools: Replica) -> None:
    """A model that draws by chance does both: it calls the tool on its way, and ends with the object."""
    found = output("pydantic-ai", with_tools)
    assert found["native"]["outputs"] == found["tool"]["outputs"] == ["Place"]
    assert found["native"]["calls"] > 0
    assert found["streamed"] is True
