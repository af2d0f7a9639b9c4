"""A gateway as KEDA's external scaler, asked by KEDA's own proto. It is compiled here from KEDA's module, in a pool of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc
from pagoda_contracts.pb.daemon_pb2 import Phase
from support.servers.gateway_process import start_gateway, write_fleet
from support.servers.scripted_replica import Replica, running

MODULE = Path(__file__).parents[2] / "devcluster/keda"
SERVICE = "externalscaler.ExternalScaler"


class Keda:
    """Messages by name, and calls by method, as KEDA's proto has them."""

    def __init__(self, files: descriptor_pb2.FileDescriptorSet) -> None:
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.Add(file)
        self.methods = pool.FindServiceByName(SERVICE).methods_by_name

    def request(self, method: str, **fields: Any) -> Any:
        return message_factory.GetMessageClass(self.methods[method].input_type)(**fields)

    def call(self, channel: grpc.aio.Channel, method: str) -> Any:
        found = self.methods[method]
        kind = channel.unary_stream if found.server_streaming else channel.unary_unary
        answer = message_factory.GetMessageClass(found.output_type)
        return kind(f"/{SERVICE}/{method}", lambda message: message.SerializeToString(), answer.FromString)


@pytest.fixture(scope="module")
def keda(tmp_path_factory):
    environment = {**os.environ, "GOWORK": "off"}
    done = subprocess.run(
        ["go", "mod", "download", "-json", "github.com/kedacore/keda/v2"], cwd=MODULE, env=environment, check=True, capture_output=True
    )
    folder = Path(json.loads(done.stdout)["Dir"]) / "pkg/scalers/externalscaler"
    target = tmp_path_factory.mktemp("keda") / "set"
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={target}", "externalscaler.proto"]) == 0
    return Keda(descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()))


def ref(keda: Keda, method: str = "IsActive", **metadata: str) -> Any:
    fields = {"name": "scaled", "namespace": "ns", "scalerMetadata": {"scalerAddress": "g:9100", "service": "s", **metadata}}
    return keda.request(method, **fields) if method != "GetMetrics" else keda.request(method, scaledObjectRef=fields)


@asynccontextmanager
async def two_gateways(tmp_path: Path, *endpoints: dict[str, Any]):
    """Two gateways of which the first knows the second, as all know all behind a headless Service. Yields their processes."""
    file = tmp_path / "fleet.json"
    write_fleet(file, [{"name": "ns/s", "served_names": ["m"], "endpoints": list(endpoints)}])
    with start_gateway("--fleet", str(file), "--identity", "other") as other:
        peers = ("--keda", "true", "--peers", f"127.0.0.1:{other.demand}")
        with start_gateway("--fleet", str(file), *peers) as asked:
            yield asked, other


@pytest.mark.deep
async def test_keda_starts_a_service_whose_request_another_gateway_holds(tmp_path, keda):
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(asyncio.timeout(120))
        asked, other = await stack.enter_async_context(two_gateways(tmp_path))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{asked.demand}"))
        stream = keda.call(channel, "StreamIsActive")(ref(keda, requests="4"), wait_for_ready=True)
        assert (await stream.read()).result is False
        request = asyncio.create_task(client.post(f"{other.url}/v1/completions", json={"model": "m", "prompt": "x"}))
        assert (await stream.read()).result is True
        metrics = await keda.call(channel, "GetMetrics")(ref(keda, "GetMetrics", requests="4", queueDepth="1"))
        assert {row.metricName: row.metricValueFloat for row in metrics.metricValues} == {"requests": 1.0, "queueDepth": 1.0}
        assert (await keda.call(channel, "IsActive")(ref(keda, requests="4"))).result is True
        request.cancel()
        assert (await stream.read()).result is False
        stream.cancel()


@pytest.mark.deep
async def test_keda_reads_targets_and_the_replicas_own_figures(tmp_path, keda):
    async with asyncio.timeout(120), running(Replica("a")) as replica, two_gateways(tmp_path, replica.entry()) as (asked, _):
        replica.say(phase=Phase.PHASE_READY, running=7, waiting=2)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{asked.demand}") as channel:
            specs = keda.call(channel, "StreamMetricSpec")(ref(keda, requests="2.5", kvUtilization="0.8"), wait_for_ready=True)
            streamed = (await specs.read()).metricSpecs
            asked_once = (await keda.call(channel, "GetMetricSpec")(ref(keda, requests="2.5", kvUtilization="0.8"))).metricSpecs
            assert list(streamed) == list(asked_once)
            assert {row.metricName: (row.targetSize, row.targetSizeFloat) for row in streamed} == {
                "requests": (2, 2.5),
                "kvUtilization": (1, 0.8),
            }
            specs.cancel()
            stream = keda.call(channel, "StreamIsActive")(ref(keda, requests="4"))
            assert (await stream.read()).result is True  # only after the replica was heard, or it would have been an error
            metrics = await keda.call(channel, "GetMetrics")(ref(keda, "GetMetrics", requests="4"))
            assert [row.metricValueFloat for row in metrics.metricValues] == [9.0]
            stream.cancel()


@pytest.mark.deep
async def test_what_keda_asks_wrongly_is_refused_by_name(tmp_path, keda):
    async with asyncio.timeout(120), two_gateways(tmp_path) as (asked, other):

        async def refused(port: int, **metadata: str) -> tuple[grpc.StatusCode, str]:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await keda.call(channel, "IsActive")(ref(keda, **metadata), wait_for_ready=True)
                return raised.value.code(), raised.value.details() or ""

        assert await refused(asked.demand, service="t", requests="1") == (grpc.StatusCode.NOT_FOUND, "there is no InferenceService ns/t")
        code, why = await refused(asked.demand, requests="none")
        assert (code, "metadata.requests is 'none'" in why) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert (await refused(other.demand, requests="1"))[0] is grpc.StatusCode.UNIMPLEMENTED  # off unless it is turned on
