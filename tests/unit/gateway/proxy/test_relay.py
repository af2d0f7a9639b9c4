"""What ends an attempt: the replica's death counts as the replica's, whatever its client does meanwhile."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from pagoda_gateway.proxy import relay
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


async def test_a_replica_that_dies_when_the_client_has_left_too_has_died(monkeypatch):
    async def read(_answer):
        return b"data: {}\n\n"

    async def dies(*_):
        raise Died("closed", "reset by peer")

    monkeypatch.setattr(relay.web, "StreamResponse", Gone)
    monkeypatch.setattr(relay, "_read", read)
    monkeypatch.setattr(relay.Relay, "_pass_on", dies)
    answer = Answer()
    with pytest.raises(UpstreamDied):
        await relay.Relay(None, make_mocked_request("POST", "/v1/completions"), "id")._stream(answer, CIMultiDict(), lambda: None)
    assert answer.closed
