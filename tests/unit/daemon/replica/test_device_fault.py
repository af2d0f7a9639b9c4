"""A device that falls off the bus, over the wires of a whole replica: the state frame, /metrics, the probes and the requests."""

import asyncio

import httpx
import msgspec
from pagoda_contracts.names import GRPC_WATCH_STATE, PATH_READY
from pagoda_contracts.pb.daemon_pb2 import Phase, State, WatchStateRequest
from pagoda_daemon.health.replica import ProbeServer
from support.engine.fake_nvml import UUID, FakeNvml
from support.servers.local_front import NAME, local_config, local_front

FAULT = f"NVIDIA H100 80GB HBM3 GPU-{UUID}: it has fallen off the bus (Xid 79)"


async def test_a_device_that_falls_off_the_bus_takes_the_replica_out_of_routing_and_out_of_nothing_else(tmp_path):
    fake = FakeNvml()
    async with local_front(local_config(tmp_path), ProbeServer, nvml=lambda: fake) as made, made.channel() as channel:
        replica = made.front.replica
        replica.limits = msgspec.structs.replace(replica.limits, device=UUID)  # as an engine on a GPU says it
        replica.changed()
        async with asyncio.timeout(60):
            while replica.device.reading is None:
                await asyncio.sleep(0.001)
        watch = channel.unary_stream(
            GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
        )
        frames = aiter(watch(WatchStateRequest(watcher="test")))
        assert (await anext(frames)).device_fault == ""
        fake.raise_xid(79)
        async with asyncio.timeout(60):
            state = await anext(frames)
            while not state.device_fault:
                state = await anext(frames)
        assert (state.device_fault, state.deep_check_failed, state.phase) == (FAULT, False, Phase.PHASE_READY)
        async with httpx.AsyncClient(base_url=f"http://{made.http}", timeout=300) as client:
            text = (await client.get("/metrics")).text
            labels = f'{{model_name="{NAME}",engine="0"'
            assert f'pagoda_device_state{labels},state="failed"}} 1\n' in text
            assert f'pagoda_device_xid_errors_total{labels},xid="79"}} 1\n' in text
            assert f'pagoda_device_memory_bytes{labels},state="used"}} {3 * 2**30}\n' in text
            answer = await client.post("/v1/completions", json={"model": NAME, "prompt": "a", "max_tokens": 2, "ignore_eos": True})
            assert answer.status_code == 200, "who takes it out of routing is not the replica"
            assert (await client.get(f"http://127.0.0.1:{made.ports.probes}{PATH_READY}")).status_code == 200
