"""Fixtures over a module's own `replica`: the real openai client, and raw HTTP."""

import httpx
import openai
import pytest
from support.servers.replica import PATIENCE_S


@pytest.fixture
def client(replica):
    with openai.OpenAI(base_url=f"http://{replica.http}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def http(replica):
    with httpx.Client(base_url=f"http://{replica.http}", timeout=PATIENCE_S) as made:
        yield made
