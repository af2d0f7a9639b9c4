"""What no source may get wrong, over all that go over a network: bytes that are not those that were asked for, a no, a line that stalls."""

import asyncio
from contextlib import aclosing, contextmanager

import pytest
from pagoda_fetch.core import progress
from pagoda_fetch.core.errors import Changed, Forbidden, Mismatch, NotFound, Stalled, Unreachable
from pagoda_fetch.download import pull
from support.clients.fetch_sources import INDEX, PROMISING, SCHEMES, shelf
from support.clients.fetching import LARGE, TAKEN, contents, model_files
from support.servers.fetch_hub import Fault, running_hub
from support.servers.loop_clock import LoopClock

FILES = model_files()
RIGHT = {name: FILES[name] for name in TAKEN}
WHOLE = sum(map(len, RIGHT.values()))
WHEN = "Thu, 01 Jan 2026 00:00:00 GMT"
DENIED = b"<Error><Code>AccessDenied</Code><Message>AKIDEXAMPLE may not</Message></Error>"


@pytest.fixture
def hub():
    with running_hub(dict(FILES)) as running:
        yield running


@pytest.fixture(params=SCHEMES)
def source(request, hub):
    return shelf(request.param, hub)


def model(folder):
    """What came, without the index that only a web server has."""
    return {name: body for name, body in contents(folder).items() if name != INDEX}


async def digest_of(source, folder):
    return (await source.fetch(source.fetcher(folder))).name.replace("-", ":")


async def test_a_cut_goes_on_where_it_was_cut(tmp_path, source, hub):
    hub.faults[LARGE] = Fault(cut_after=1_500_000)
    assert model(await source.fetch(source.fetcher(tmp_path))) == RIGHT
    # What sockets and a batch held at the cut is the only thing sent twice.
    assert len(FILES[LARGE]) <= hub.sent[LARGE] < len(FILES[LARGE]) + 1_000_000


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_an_object_that_is_replaced_between_two_tries_ends_the_fetch(tmp_path, hub, scheme):
    """No digest is promised: going on at an offset of another content would be published."""
    source, newer = shelf(scheme, hub), model_files(seed=8)[LARGE]
    where = f"/models/llama/{LARGE}"
    served = hub.extra[where]

    def cut_and_replaced(request):
        hub.extra[where] = served
        request.send_response(200)
        for key, value in (("content-length", len(FILES[LARGE])), ("etag", request.headers["if-match"]), ("last-modified", WHEN)):
            request.send_header(key, str(value))
        request.end_headers()
        request.wfile.write(FILES[LARGE][:1_500_000])
        hub.files[LARGE] = newer
        request.close_connection = True

    hub.extra[where] = cut_and_replaced
    fetcher = source.fetcher(tmp_path)
    with pytest.raises(Changed):
        await source.fetch(fetcher)
    assert fetcher.published() == []


@pytest.mark.parametrize("name", [LARGE, "config.json"])
async def test_a_flipped_bit_is_refused_where_a_digest_is_given_and_nothing_of_it_is_left(tmp_path, source, hub, name):
    digest = await digest_of(source, tmp_path / "before")
    hub.faults[name] = Fault(flip_at=5, times=99)
    fetcher = source.fetcher(tmp_path)
    with pytest.raises(Mismatch):
        await source.fetch(fetcher, digest)
    assert (fetcher.published(), fetcher.staged()) == ([], {})
    hub.faults.clear()
    assert model(await source.fetch(fetcher, digest)) == RIGHT


@pytest.mark.parametrize("scheme", PROMISING)
async def test_a_bit_that_flips_once_costs_its_file_once_more_where_the_listing_promises_digests(tmp_path, hub, scheme):
    hub.faults[LARGE] = Fault(flip_at=2_000_000)
    source = shelf(scheme, hub)
    assert model(await source.fetch(source.fetcher(tmp_path))) == RIGHT
    assert hub.sent[LARGE] == 2 * len(FILES[LARGE])


@pytest.mark.parametrize("scheme", PROMISING)
async def test_what_stays_wrong_is_refused_without_a_digest_too(tmp_path, hub, scheme):
    hub.faults[LARGE] = Fault(flip_at=5, times=99)
    source = shelf(scheme, hub)
    fetcher = source.fetcher(tmp_path)
    with pytest.raises(Mismatch, match=LARGE):
        await source.fetch(fetcher)
    assert (fetcher.published(), fetcher.staged()) == ([], {})


@pytest.mark.parametrize("body", [b"", DENIED])
async def test_a_listing_that_is_denied_is_reported_at_once_and_says_what_to_do(tmp_path, source, hub, body):
    hub.extra[source.listing] = lambda request: request.answer(403, body)
    fetcher = source.fetcher(tmp_path)
    with pytest.raises(Forbidden, match="credential") as raised:
        await source.fetch(fetcher)
    assert "AKIDEXAMPLE" not in str(raised.value)
    assert (source.asked(source.listing), fetcher.published()) == (1, [])


@pytest.mark.parametrize(("status", "error"), [(403, Forbidden), (404, NotFound), (503, Unreachable)])
async def test_what_a_file_answers_is_said(tmp_path, source, hub, status, error):
    hub.faults[LARGE] = fault = Fault(status=status, times=99)
    fetcher = source.fetcher(tmp_path)
    with pytest.raises(error):
        await source.fetch(fetcher)
    assert 99 - fault.times == (fetcher.limits.attempts if error is Unreachable else 1)
    assert fetcher.published() == []


@pytest.fixture
async def clock():
    return LoopClock()


@contextmanager
def long_trickle(fault, clock):
    """Most of the patience passes between two small pieces of a body once the trickle has begun: the line is never silent for all of it.

    This ends with the fetch that trickles. The next fetch reads four files at once, and the last piece of each file may be small: two such
    pieces would use up the patience of a third file.
    """

    async def aged(chunks):
        async with aclosing(chunks) as stream:
            async for chunk in stream:
                if fault.begun.is_set() and len(chunk) < 1000:
                    clock.skip(40.0)
                yield chunk

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pull, "steady", lambda chunks, limits, what: progress.steady(aged(chunks), limits, what))
        yield


async def held_up(source, fetcher, fault, clock):
    """The fetch until it has given up: minutes pass in which the line brings nothing."""
    source.hub.faults[LARGE] = fault
    task = asyncio.create_task(source.fetch(fetcher))
    await fetcher.reached("fetching", done=2**20)
    await asyncio.to_thread(fault.begun.wait)
    while not task.done():  # what was on its way when it was held up counts as progress once more
        clock.skip(61.0)
        await asyncio.sleep(0.01)
    await task


async def goes_on(source, fetcher, folder):
    """What came stays, and the next try asks for the rest alone."""
    kept = fetcher.staged()[f"{LARGE}.partial"]
    assert kept >= 2**20
    assert fetcher.published() == []
    for fault in source.hub.faults.values():
        fault.released.set()
        await asyncio.to_thread(fault.ended.wait)
    source.hub.faults.clear()
    source.hub.sent.clear()
    assert model(await source.fetch(source.fetcher(folder))) == RIGHT
    assert source.hub.sent[LARGE] < len(FILES[LARGE]) - kept + 1000


async def test_a_stall_in_the_middle_is_given_up_and_the_next_attempt_resumes(tmp_path, source, clock):
    fetcher = source.fetcher(tmp_path, attempts=1, parallel=1)
    with pytest.raises((Stalled, Unreachable)):  # the connection's own patience is as long
        await held_up(source, fetcher, Fault(hold_after=2_500_000, times=99), clock)
    await goes_on(source, fetcher, tmp_path)


@pytest.mark.parametrize("scheme", PROMISING)
async def test_a_trickle_is_a_stall_however_long_it_goes_on(tmp_path, hub, scheme, clock):
    source = shelf(scheme, hub)
    hub.faults[LARGE] = fault = Fault(trickle_after=2_500_000, times=99)
    fetcher = source.fetcher(tmp_path, silence=60.0, floor=4096, parallel=1)
    with long_trickle(fault, clock), pytest.raises(Stalled, match="bytes in 60 s"):
        await source.fetch(fetcher)
    # Three tries in a row without progress, after the first that brought some.
    assert 99 - fault.times <= 4
    await goes_on(source, fetcher, tmp_path)


@pytest.mark.parametrize("scheme", ["s3", "gs"])
async def test_a_trickle_of_objects_is_a_stall(tmp_path, hub, scheme, clock):
    """Their client hands on nothing below 256 kB: to us a trickle is silence."""
    source = shelf(scheme, hub)
    fetcher = source.fetcher(tmp_path, attempts=1, parallel=1)
    with pytest.raises(Stalled, match="bytes in 60 s"):
        await held_up(source, fetcher, Fault(trickle_after=2_500_000, times=99), clock)
    await goes_on(source, fetcher, tmp_path)
