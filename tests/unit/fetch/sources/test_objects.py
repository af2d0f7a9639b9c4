"""s3:// against a real S3 server on loopback."""

import asyncio
import uuid

import pytest
from pagoda_fetch.core.errors import Changed, Mismatch, NotFound, Refused, Stalled, Unreachable
from support.clients.fetching import LARGE, TAKEN, Fetcher, contents, model_files
from support.servers.fetch_servers import fill_bucket, s3_server, wire
from support.servers.loop_clock import LoopClock

pytestmark = pytest.mark.deep  # moto's server takes 3 s of CPU; in the unit tier, test_sources.py speaks the same protocol
FILES = model_files()


@pytest.fixture(scope="module")
def endpoint():
    with s3_server() as running:
        yield running


@pytest.fixture
def bucket(endpoint):
    name = f"b-{uuid.uuid4().hex[:12]}"
    fill_bucket(endpoint, name, {f"llama/{file}": body for file, body in FILES.items()})
    return name


@pytest.fixture
def line(endpoint):
    with wire(endpoint) as between:
        yield between


def keys(fetcher, address):
    words = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cret", "AWS_ENDPOINT_URL": f"http://{address}"}
    return fetcher.credential("store", **words)


async def test_a_model_arrives_whole(tmp_path, bucket, line):
    fetcher = Fetcher(tmp_path)
    place = await fetcher.fetch(f"s3://{bucket}/llama", credential=keys(fetcher, line.address))
    assert contents(place) == {name: FILES[name] for name in TAKEN}


async def test_a_cut_goes_on_where_it_was_cut(tmp_path, bucket, line):
    fetcher = Fetcher(tmp_path, parallel=1)
    line.cuts = [1_500_000, 1_000_000]
    place = await fetcher.fetch(f"s3://{bucket}/llama", credential=keys(fetcher, line.address))
    assert contents(place)[LARGE] == FILES[LARGE]
    assert line.cuts == []
    whole = sum(len(FILES[name]) for name in TAKEN)
    # Twice came at most what one batch held unwritten and what sockets held at each cut.
    assert whole < line.sent < whole + 2_000_000


async def stalled(fetcher, bucket, name, line):
    """A fetch of which nothing comes any more after 2.5 MB, of which a batch at least was written; then minutes pass."""
    clock = LoopClock()
    line.hold_after = 2_500_000
    task = asyncio.create_task(fetcher.fetch(f"s3://{bucket}/llama", credential=name))
    await fetcher.reached("fetching", done=2**20)
    await asyncio.to_thread(line.holding.wait)
    while not task.done():  # what was on its way when it was held up counts as progress once more
        clock.skip(61.0)
        await asyncio.sleep(0.01)
    with pytest.raises(Stalled):
        await task
    line.hold_after = None


async def test_silence_in_the_middle_is_a_stall_and_the_next_attempt_resumes(tmp_path, bucket, line):
    fetcher = Fetcher(tmp_path, attempts=1, parallel=1)
    name = keys(fetcher, line.address)
    await stalled(fetcher, bucket, name, line)
    kept = sum(fetcher.staged().values())
    assert kept > 2**20
    before = line.sent
    assert contents(await Fetcher(tmp_path).fetch(f"s3://{bucket}/llama", credential=name))[LARGE] == FILES[LARGE]
    assert line.sent - before < sum(len(FILES[name]) for name in TAKEN) - kept + 100_000


async def test_an_object_that_was_replaced_meanwhile_is_not_mixed_with_its_successor(tmp_path, endpoint, bucket, line):
    fetcher = Fetcher(tmp_path, attempts=1, parallel=1)
    name = keys(fetcher, line.address)
    await stalled(fetcher, bucket, name, line)
    newer = model_files(seed=8)
    fill_bucket(endpoint, bucket, {f"llama/{file}": body for file, body in newer.items()})
    assert contents(await Fetcher(tmp_path).fetch(f"s3://{bucket}/llama", credential=name))[LARGE] == newer[LARGE]


async def test_an_object_that_is_replaced_between_two_tries_ends_the_fetch(tmp_path, endpoint, bucket, line):
    """S3 promises no hash: going on at an offset of another content would be published."""
    fetcher = Fetcher(tmp_path, parallel=1)
    newer = {f"llama/{file}": body for file, body in model_files(seed=8).items()}
    line.cuts, line.at_cut = [1_500_000], lambda: fill_bucket(endpoint, bucket, newer)
    with pytest.raises(Changed):
        await fetcher.fetch(f"s3://{bucket}/llama", credential=keys(fetcher, line.address))
    assert fetcher.published() == []


async def test_a_wrong_digest_is_refused_and_nothing_is_left(tmp_path, bucket, line):
    fetcher = Fetcher(tmp_path)
    with pytest.raises(Mismatch):
        await fetcher.fetch(f"s3://{bucket}/llama", digest=f"sha256:{'0' * 64}", credential=keys(fetcher, line.address))
    assert (fetcher.published(), fetcher.staged()) == ([], {})


async def test_what_is_not_there_is_said(tmp_path, bucket, line):
    fetcher = Fetcher(tmp_path, attempts=1)
    name = keys(fetcher, line.address)
    with pytest.raises(NotFound):
        await fetcher.fetch(f"s3://{bucket}/qwen", credential=name)
    with pytest.raises(NotFound):
        await fetcher.fetch(f"s3://{bucket}-gone/llama", credential=name)


async def test_a_name_that_leaves_its_folder_refuses_the_whole_source(tmp_path, endpoint, bucket, line):
    fill_bucket(endpoint, bucket, {"llama/a%5C..%5Cb.json": b"{}"})
    fetcher = Fetcher(tmp_path, attempts=1)
    with pytest.raises((Refused, Unreachable)):
        await fetcher.fetch(f"s3://{bucket}/llama", credential=keys(fetcher, line.address))
    assert fetcher.published() == []
