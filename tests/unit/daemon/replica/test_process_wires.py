"""A replica in its own two processes: authentication, texts and blocks that the engine process reports, nothing secret in logs."""

import subprocess

import grpc
import httpx
import pytest
import zmq
from pagoda_contracts.launch import KvEventsConfig
from pagoda_contracts.names import GRPC_SET_STATE, GRPC_WATCH_STATE, HEADER_PREFIX_HASHES, ROLE_GATEWAY, ROLE_OPERATOR
from pagoda_contracts.pb.daemon_pb2 import TARGET_DRAINING, Phase, SetStateRequest, SetStateResponse, State, WatchStateRequest
from pagoda_contracts.prefix import Scope, text_hashes, to_header
from support.clients.kv_decoder import picture, replay
from support.kube.issuer import Issuer
from support.servers.replica import NAME, PATIENCE_S, replica_config, start_replica

pytestmark = pytest.mark.deep
TEXT = "0123456789 " * 100


def test_a_replica_in_two_processes_speaks_every_wire(tmp_path):
    issuer = Issuer(tmp_path)
    tokens = {role: issuer.token(role) for role in (ROLE_GATEWAY, ROLE_OPERATOR)}
    gateway, operator = ((("authorization", f"Bearer {token}"),) for token in tokens.values())
    wanted = KvEventsConfig(port=0, replay_port=0)
    config = replica_config(tmp_path, auth=issuer.config(), kv_events=wanted, engine={"max_model_len": 2048})
    hashes = text_hashes(Scope("salt", NAME), TEXT)
    assert len(hashes) == 2
    with start_replica(config, stderr=subprocess.STDOUT) as replica, grpc.insecure_channel(replica.grpc) as channel:
        url, body = f"http://{replica.http}/v1/completions", {"model": NAME, "prompt": TEXT, "max_tokens": 2}
        assert httpx.post(url, json=body, timeout=PATIENCE_S).status_code == 401
        watch = channel.unary_stream(
            GRPC_WATCH_STATE, request_serializer=WatchStateRequest.SerializeToString, response_deserializer=State.FromString
        )
        frames = watch(WatchStateRequest(watcher="test"), metadata=gateway, timeout=PATIENCE_S)
        headers = {**dict(gateway), HEADER_PREFIX_HASHES: to_header(hashes)}
        assert httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S).status_code == 200
        heard = set()
        while not heard >= set(hashes):
            heard |= set(next(frames).prefixes_resident)
        frames.cancel()
        replay_port = replica.line("kv_events")["replay_port"]
        with zmq.Context() as context:
            assert picture(replay(context, replay_port, 0))
        order = channel.unary_unary(
            GRPC_SET_STATE, request_serializer=SetStateRequest.SerializeToString, response_deserializer=SetStateResponse.FromString
        )
        answer = order(SetStateRequest(target=TARGET_DRAINING, epoch=1), metadata=operator, timeout=PATIENCE_S)
        assert answer.phase == Phase.PHASE_DRAINING
        replica.terminate()
        assert replica.wait() == 0
        assert not any(token in repr(replica.lines) for token in tokens.values())
