"""What ends an attempt: the replica's death counts as the replica's, whatever its client does meanwhile."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from pagoda_contracts.names import CONTINUABLE_EXACT, CONTINUABLE_NO, HEADER_CONTINUABLE
from pagoda_gateway.proxy import relay
from pagoda_gateway.proxy.continuing import Record
from pagoda_gateway.requests.errors import Died, UpstreamDied


class Gone(web.StreamResponse):
    """The client left: whatever is written to it fails, as aiohttp does it."""

    async def prepare(self, _request):
        return None

    async def write(self, _data):
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")


class Here(Gone):
    async def write(self, _data):
        return None


class Answer:
    def close(self):
        return None

    def __init__(self, continuable):
        self.headers = {HEADER_CONTINUABLE: continuable} if continuable else {}


class Life:
    fixed = begun = advanced = False

    def first_byte(self):
        return None

    heard = first_byte


def of(monkeypatch, response, *chunks):
    """A relay whose replica says this and dies."""
    left = list(chunks)

    async def read(_answer):
        if not left:
            raise Died("closed", "reset by peer")
        return left.pop(0)

    monkeypatch.setattr(relay.web, "StreamResponse", response)
    monkeypatch.setattr(relay, "_read", read)
    return relay.Relay(None, make_mocked_request("POST", "/v1/completions"), "id")


EVENT = b"data: {}\n\n"
NOTED = EVENT + b': pagoda more 7 0 1 {"ids":[1]}\n\n'


@pytest.mark.parametrize(
    ("continuable", "chunk", "error", "advanced"),
    [
        (None, EVENT, UpstreamDied, False),
        (CONTINUABLE_NO, EVENT + b": pagoda more 7 0 1\n\n", UpstreamDied, False),
        (CONTINUABLE_EXACT, NOTED, Died, True),
        (CONTINUABLE_EXACT, EVENT, Died, False),  # the client has none of it
        (None, b"data: {", Died, False),  # no whole event
    ],
)
async def test_a_stream_whose_tokens_are_known_can_go_on_elsewhere(monkeypatch, continuable, chunk, error, advanced):
    one, life = of(monkeypatch, Here, chunk), Life()
    with pytest.raises(error):
        await one._stream(Answer(continuable), CIMultiDict(), life, Record(lambda _: None))
    assert life.advanced is advanced
    assert life.fixed is (error is UpstreamDied)


async def test_a_client_that_has_left_gets_no_error(monkeypatch):
    one = of(monkeypatch, Gone)
    begun = Gone()
    assert await one.end(begun, UpstreamDied("the replica died")) is begun
