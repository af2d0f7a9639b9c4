"""gRPC `pagoda.v1.Fetch` on loopback: what a daemon asks and gets."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from pagoda_contracts.names import GRPC_FETCH_FETCH
from pagoda_contracts.pb.fetch_pb2 import (
    FETCH_PHASE_DONE,
    FETCH_PHASE_FAILED,
    FETCH_PHASE_FETCHING,
    FETCH_PHASE_RESOLVING,
    FETCH_PHASE_VERIFYING,
    FetchProgress,
    FetchRequest,
)
from pagoda_fetch.serve.service import Fetches, listen
from pagoda_fetch.volume.lock import myself
from support.clients.fetching import LARGE, Fetcher, model_files
from support.servers.fetch_hub import Fault, running_hub

FILES = model_files()


@pytest.fixture
def hub():
    with running_hub(FILES) as running:
        yield running


@pytest.fixture
def fetcher(tmp_path, hub):
    return Fetcher(tmp_path, hub.url)


@asynccontextmanager
async def serving(fetcher):
    fetches = Fetches(fetcher.store, fetcher.around, myself(""))
    server, port = await listen(fetches, 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel.unary_stream(
            GRPC_FETCH_FETCH, request_serializer=FetchRequest.SerializeToString, response_deserializer=FetchProgress.FromString
        )
    await fetches.stop()
    await server.stop(0)


async def test_progress_streams_and_ends_with_the_place(fetcher, hub):
    async with serving(fetcher) as call:
        moments = [progress async for progress in call(FetchRequest(uri="hf://org/model"))]
    assert moments[0].phase == FETCH_PHASE_RESOLVING
    last = moments[-1]
    assert (last.phase, last.bytes_done) == (FETCH_PHASE_DONE, last.bytes_total)
    assert last.path.endswith(last.digest.replace(":", "-"))
    assert fetcher.published() == [last.path.rpartition("/")[2]]


async def test_the_same_request_joins_the_one_under_way(fetcher, hub):
    hub.faults[LARGE] = Fault(trickle_after=1_000_000)
    async with serving(fetcher) as call:
        first = call(FetchRequest(uri="hf://org/model"))
        assert (await first.read()).phase == FETCH_PHASE_RESOLVING
        await asyncio.to_thread(hub.faults[LARGE].begun.wait)
        second = call(FetchRequest(uri="hf://org/model"))
        assert (await second.read()).phase == FETCH_PHASE_FETCHING
        first.cancel()  # who leaves stops nothing
        hub.faults[LARGE].released.set()
        last = await second.read()
        while last.phase == FETCH_PHASE_FETCHING or last.phase == FETCH_PHASE_VERIFYING:
            last = await second.read()
        assert last.phase == FETCH_PHASE_DONE
    assert len([path for path, _ in hub.asked if path.startswith("/api/")]) == 1


@pytest.mark.parametrize(
    ("request_", "says", "retryable"),
    [
        (FetchRequest(uri="ftp://host/x"), "Unsupported", False),
        (FetchRequest(uri="hf://org/gone"), "NotFound", False),
        (FetchRequest(uri="hf://org/model", credential="../etc"), "ConfigRejected", False),
        (FetchRequest(uri="hf://org/model", digest=f"sha256:{'0' * 64}"), "Mismatch", False),
        (FetchRequest(uri="hf://org/model", revision="busy"), "", True),
    ],
    ids=["scheme", "gone", "credential", "digest", "busy"],
)
async def test_failures_say_why_and_whether_to_try_again(fetcher, hub, request_, says, retryable):
    if retryable:
        hub.status = 503
    async with serving(fetcher) as call:
        *_, last = [progress async for progress in call(request_)]
    assert (last.phase, last.retryable) == (FETCH_PHASE_FAILED, retryable)
    assert last.error.startswith(says)


async def test_after_a_failure_the_same_request_begins_anew(fetcher, hub):
    hub.status = 403
    async with serving(fetcher) as call:
        *_, last = [progress async for progress in call(FetchRequest(uri="hf://org/model"))]
        assert last.phase == FETCH_PHASE_FAILED
        hub.status = None
        *_, last = [progress async for progress in call(FetchRequest(uri="hf://org/model"))]
        assert last.phase == FETCH_PHASE_DONE


def listeners(port):
    """Local addresses of listening sockets, as the kernel writes them."""
    rows = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"]


async def test_it_listens_on_loopback_only(fetcher):
    fetches = Fetches(fetcher.store, fetcher.around, myself(""))
    server, port = await listen(fetches, 0)
    bound = listeners(port)
    await server.stop(0)
    assert bound in (["0100007F"], ["0000000000000000FFFF00000100007F"])
