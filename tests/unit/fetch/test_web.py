"""HTTP as fetch needs it, against servers that answer a range wrongly and redirect to another port."""

from contextlib import aclosing

import pytest
from pagoda_fetch.core.errors import Forbidden, NotFound, Refused, Unreachable
from pagoda_fetch.sources.web import Web
from support.servers.failing_server import FailingServer
from support.servers.fetch_hub import running_hub

BODY = b"0123456789"


@pytest.fixture
async def web():
    made = Web(60.0)
    yield made
    await made.close()


@pytest.fixture
def server():
    with running_hub({}) as running:
        yield running


async def streamed(web, url, offset, headers=None):
    """What came, and how it ended."""
    came = b""
    try:
        async with aclosing(web.stream(url, headers or {}, (offset, len(BODY)))) as chunks:
            async for chunk in chunks:
                came += chunk
    except Unreachable as error:
        return came, str(error)
    return came, ""


def ranged(server, content_range, body):
    """A file that is answered with 206, whatever was asked for."""
    headers = {"content-range": content_range} if content_range else {}
    server.extra["/file"] = lambda request: request.answer(206, body, headers)
    return f"{server.url}/file"


async def test_the_range_that_was_asked_for_is_taken(web, server):
    assert await streamed(web, ranged(server, "bytes 3-9/10", BODY[3:]), 3) == (BODY[3:], "")
    assert server.asked_for("/file")[0]["range"] == "bytes=3-9"


@pytest.mark.parametrize("content_range", ["bytes 0-9/10", "bytes 2-9/10", "bytes 4-9/10", "bytes 30-39/40", "bytes */10", "3-9/10", ""])
async def test_another_range_than_asked_for_is_refused_before_a_byte_of_it(web, server, content_range):
    came, error = await streamed(web, ranged(server, content_range, BODY), 3)
    assert came == b""
    assert error.endswith("asked for bytes from 3, was sent others")


async def test_a_server_that_sends_all_is_read_up_to_the_offset(web, server):
    server.extra["/file"] = lambda request: request.answer(200, BODY)
    assert await streamed(web, f"{server.url}/file", 3) == (BODY[3:], "")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["the same server", "another port of the same host"])
async def test_a_credential_follows_a_redirect_on_its_own_server_alone(web, server, elsewhere):
    with running_hub({}) as other:
        target = other if elsewhere else server
        server.extra["/file"] = lambda request: request.answer(302, b"", {"location": f"{target.url}/blob"})
        target.extra["/blob"] = lambda request: request.answer(200, BODY)
        sent = {"authorization": "Bearer s3cret", "Cookie": "s3cret", "x-other": "kept"}
        assert await streamed(web, f"{server.url}/file", 0, sent) == (BODY, "")
        (headers,) = target.asked_for("/blob")
        assert ("s3cret" in " ".join(headers.values()), headers["x-other"]) == (not elsewhere, "kept")


@pytest.mark.parametrize("how", ["reset", "half a head", "half a body", "half a chunk"])
async def test_an_answer_that_breaks_off_may_be_asked_for_again(web, how):
    async with FailingServer([how]) as server:
        with pytest.raises(Unreachable):
            await web.document(server.url, {})
        response, body = await web.document(server.url, {})
        assert (response.status_code, body[:1]) == (200, b"{")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        *((status, Unreachable) for status in (408, 425, 429, 500, 502, 503, 504)),
        *((status, Forbidden) for status in (401, 403)),
        *((status, NotFound) for status in (404, 410)),
        *((status, Refused) for status in (400, 405, 418)),
    ],
)
async def test_a_status_says_whether_another_try_may_help(web, status, error):
    async with FailingServer([str(status)]) as server:
        with pytest.raises(error, match=f"answers {status}"):
            await web.document(server.url, {})
