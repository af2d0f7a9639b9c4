"""GET by the client library: whose token it shows, and what becomes of an answer that is an error."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest
from kubernetes.aio.client import Configuration
from pagoda_kube.api import ApiFault, KubernetesApi
from support.servers.scripted_api import scripted_api

LIMITS = aiohttp.ClientTimeout(total=60)
PROXYS = "<html><body><h1>502 Bad Gateway</h1>" + "x" * 5000


@pytest.fixture
async def harness() -> AsyncIterator[tuple]:
    """The client, and what the server will say to /pods."""
    async with scripted_api() as (url, scripts):
        api = KubernetesApi(Configuration(host=url, api_key={"BearerToken": "Bearer mine"}))
        yield api, scripts["/pods"]
        await api.close()


async def test_an_answer_is_the_caller_s_to_read_and_was_asked_for_with_the_token(harness):
    api, script = harness
    script.say((200, b"anything"))
    answer = await api.get("/pods", [("labelSelector", "a in (b,c)"), ("limit", "1")], LIMITS)
    assert await answer.read() == b"anything"
    request = await script.next_request()
    assert dict(request.query) == {"labelSelector": "a in (b,c)", "limit": "1"}
    assert (request.headers["authorization"], request.headers["accept"]) == ("Bearer mine", "application/json")


async def test_a_status_is_a_fault_with_its_code_and_message(harness):
    api, script = harness
    script.say(410)
    with pytest.raises(ApiFault, match="410: scripted") as fault:
        await api.get("/pods", [], LIMITS)
    assert fault.value.code == 410


@pytest.mark.parametrize(
    ("body", "reported"), [(PROXYS.encode(), PROXYS[:200]), (b"[1]", "[1]"), (b"", ""), (b'{"message": "\xff"}', '{"message": "\ufffd"}')]
)
async def test_a_page_that_is_no_status_is_a_fault_with_the_code_and_the_page_s_beginning(harness, body, reported):
    api, script = harness
    script.say((502, body))
    with pytest.raises(ApiFault) as fault:
        await api.get("/pods", [], LIMITS)
    assert (fault.value.code, str(fault.value)) == (502, f"502: {reported}")
