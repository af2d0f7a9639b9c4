"""What ends an attempt: the replica's death counts as the replica's, whatever its client does meanwhile."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict
from pagoda_contracts.names import CONTINUABLE_EXACT, CONTINUABLE_NO, HEADER_CONTINUABLE
from pagoda_gateway.proxy import relay
from pagoda_gateway.proxy.continuing import Record
from pagoda_gateway.proxy.upstream import Call
from pagoda_gateway.requests.errors import Died, QueueFull, UpstreamDied
from pagoda_gateway.requests.lifecycle import RequestLife
from support.harness.gateway import SERVICE, GatewayHarness


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


async def test_a_stream_whose_record_is_full_stays_with_its_replica(monkeypatch):
    """It would end if it were taken back from a replica that is silent for a while."""

    def full(_size):
        raise QueueFull("no room")

    one, life, record = of(monkeypatch, Here, NOTED), Life(), Record(full)
    with pytest.raises(UpstreamDied):
        await one._stream(Answer(CONTINUABLE_EXACT), CIMultiDict(), life, record)
    assert record.lost
    assert life.fixed


class Whole:
    """A replica's answer without stream."""

    content_type = "application/json"

    def __init__(self, status):
        self.status, self.headers = status, CIMultiDict()

    async def read(self):
        return b"{}"

    def close(self):
        return None


class Replica:
    """Answers what it is asked with this; an exception is raised."""

    def __init__(self, answer):
        self._answer = answer

    async def send(self, *_, **__):
        return self._answer


class Anew(Whole):
    """A replica that begins a stream anew, because it cannot continue one."""

    content_type = "text/event-stream"


@pytest.mark.parametrize(
    ("answer", "lost", "blamed"),
    [
        (Whole(409), False, False),
        (Whole(413), False, False),
        (Anew(200), False, False),
        (Whole(200), True, False),  # it is not asked
        (Whole(500), False, True),
    ],
)
async def test_the_death_of_one_replica_is_not_blamed_on_the_next_one(answer, lost, blamed):
    harness = GatewayHarness()
    harness.service()
    harness.frame(name="ns/b")
    [second] = harness.cache.endpoints(harness.cache.service(SERVICE))
    for _ in range(5):
        life = RequestLife(harness.counters, "id", lambda _: None)
        life.service = SERVICE
        one = relay.Relay(Replica(answer), make_mocked_request("POST", "/v1/completions"), "id")
        one.begun, one._record = Here(), Record(lambda _: None)
        one._record.lost = lost
        with pytest.raises(UpstreamDied), life.at(second):
            await one.attempt(Call("/v1/completions", CIMultiDict(), b""), life, "address", "route", fresh=True)
    assert (second.failures.until_ms > harness.now_ms) is blamed
    failed = [window.minute(harness.now_ms).failed for window in harness.tally.of(SERVICE).revisions.values()]
    assert failed == ([5] if blamed else [])
