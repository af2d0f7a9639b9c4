"""What takes longer the more a client wrote is done off the event loop, on which everybody's streams live."""

import threading

import httpx
import pytest
from pagoda_daemon.api.openai import requests, tools
from support.servers.local_front import NAME, local_config, local_front

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
async def front(tmp_path):
    async with local_front(local_config(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("stream", [True, False])
async def test_tools_are_looked_into_off_the_loop(front, monkeypatch, stream):
    threads = []

    def noted(*given, **more):
        threads.append(threading.current_thread())
        return tools.toolbox(*given, **more)

    monkeypatch.setattr(requests, "toolbox", noted)
    chat = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": stream}
    async with httpx.AsyncClient(base_url=f"http://{front.http}", timeout=60) as client:
        answer = await client.post("/v1/chat/completions", json={**chat, "tools": [TOOL], "tool_choice": "none"})
    assert answer.status_code == 200
    assert threads
    assert threading.current_thread() not in threads
