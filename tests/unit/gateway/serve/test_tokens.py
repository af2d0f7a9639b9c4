"""A gateway process that shows its token to real replicas: keys rotate under load, and a replica refuses the token."""

import asyncio
import json
import time

import aiohttp
import pytest
from pagoda_contracts.names import ROLE_GATEWAY
from support.kube.issuer import STRANGER, Issuer, SigningKey
from support.servers.gateway_process import start_gateway, write_fleet
from support.servers.replica import NAME, replica_config, start_replica


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path)


def project(path, token):
    """As kubelet does: swapped, not rewritten."""
    path.with_suffix(".new").write_text(token)
    path.with_suffix(".new").replace(path)


async def ask(client, gateway, tokens=8):
    body = {"model": NAME, "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    async with client.post(f"{gateway.url}/v1/completions", json=body, headers={"authorization": "Bearer sk-client"}) as answer:
        return answer.status, json.loads(await answer.read())


@pytest.mark.deep
async def test_keys_rotate_under_load_without_one_failure(tmp_path, issuer):
    """A real replica that asks for tokens, a real gateway that shows its own. Twice the cluster goes over to a new key: published beside
    the old one, then signing, then alone. Requests go on all the while, and a client's own key is none of the replica's business."""
    token, fleet = tmp_path / "token", tmp_path / "fleet.json"
    project(token, issuer.token(ROLE_GATEWAY))
    with start_replica(replica_config(tmp_path, auth=issuer.config())) as replica:
        endpoint = {"http": replica.http, "grpc": replica.grpc}
        write_fleet(fleet, [{"name": "ns/s", "served_names": [NAME], "endpoints": [endpoint]}])
        with start_gateway("--fleet", str(fleet), "--token", str(token), "--hold-timeout", "30s") as gateway:
            async with aiohttp.ClientSession() as client:
                done, answers = asyncio.Event(), [[] for _ in range(4)]

                async def load(mine):
                    while not done.is_set():
                        mine.append(await ask(client, gateway))
                        await asyncio.sleep(0.02)

                async def under_load(seconds):
                    """Both processes look at their files once a second; then no request is under way that began before."""
                    await asyncio.sleep(seconds)
                    counts = [len(mine) for mine in answers]
                    while any(len(mine) < count + 3 for mine, count in zip(answers, counts, strict=True)):
                        await asyncio.sleep(0.01)

                loads = [asyncio.create_task(load(mine)) for mine in answers]
                for number in range(2):
                    project(
                        token, issuer.token(ROLE_GATEWAY, exp=int(time.time()) + 63)
                    )  # in its last minute soon: nothing is held back then
                    issuer.keys.append(SigningKey(f"rotated-{number}"))
                    issuer.publish()
                    await under_load(1.2)
                    project(token, issuer.token(ROLE_GATEWAY))
                    await under_load(4)
                    issuer.keys = issuer.keys[-1:]
                    issuer.publish()
                    await under_load(1.2)
                done.set()
                await asyncio.gather(*loads)
                assert {status for mine in answers for status, _ in mine} == {200}
                # Without a token nobody gets in: the same request, straight to the replica.
                async with client.post(f"http://{replica.http}/v1/completions", json={"model": NAME, "prompt": "x"}) as refused:
                    assert refused.status == 401


@pytest.mark.deep
async def test_a_replica_that_does_not_let_the_gateway_in_is_not_the_client_s_fault(tmp_path, issuer):
    """Its state is not heard either: requests wait for one that does, and the client is told to come back, never that his key is wrong."""
    token, fleet = tmp_path / "token", tmp_path / "fleet.json"
    project(token, issuer.keys[0].token(STRANGER))
    with start_replica(replica_config(tmp_path, auth=issuer.config())) as replica:
        endpoint = {"http": replica.http, "grpc": replica.grpc}
        write_fleet(fleet, [{"name": "ns/s", "served_names": [NAME], "endpoints": [endpoint]}])
        with start_gateway("--fleet", str(fleet), "--token", str(token), "--hold-timeout", "1s") as gateway:
            async with aiohttp.ClientSession() as client:
                status, body = await ask(client, gateway)
                assert (status, body["error"]["code"]) == (503, "no_ready_endpoint")
