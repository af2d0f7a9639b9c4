"""What ends an attempt: the replica's death counts as the replica's, whatever its client does meanwhile."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from pagoda_gateway.proxy import relay
from pagoda_gateway.proxy.continuing import Record
from pagoda_gateway.requests.errors import Died, UpstreamDied


class Gone(web.StreamResponse):
    """The client left: whatever is written to it fails, as aiohttp does it."""

    async def prepare(self, _request):
        return None

    async def write(self, _data):
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")


class Answer:
    closed = False

    def close(self):
        self.closed = True


class Life:
    fixed = begun = False

    def first_byte(self):
        return None

    heard = first_byte


async def test_a_replica_that_dies_when_the_client_has_left_too_has_died(monkeypatch):
    chunks = [b"data: {}\n\n"]

    async def read(_answer):
        if not chunks:
            raise Died("closed", "reset by peer")
        return chunks.pop()

    monkeypatch.setattr(relay.web, "StreamResponse", Gone)
    monkeypatch.setattr(relay, "_read", read)
    monkeypatch.setattr(relay.Events, "feed", lambda *_: b"")  # nothing is written before the replica dies
    answer = Answer()
    one = relay.Relay(None, make_mocked_request("POST", "/v1/completions"), "id")
    with pytest.raises(UpstreamDied):
        await one._stream(answer, CIMultiDict(), Life(), Record(lambda _: None))
    assert answer.closed
