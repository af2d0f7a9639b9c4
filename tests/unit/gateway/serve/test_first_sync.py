"""A gateway that has not listed the cluster yet: it is not Ready, and says of no model that it does not exist."""

import asyncio
import json

import aiohttp
from pagoda_contracts.names import PATH_READY, PATH_STARTUP
from pagoda_gateway.watch.cluster import SERVICES
from pagoda_gateway.watch.quotas import QUOTAS
from pagoda_gateway.watch.slices import SLICES
from support.servers.gateway_process import start_gateway
from support.servers.scripted_api import page, scripted_api


async def probed(gateway, path, status):
    async with asyncio.timeout(120):
        while await asyncio.to_thread(gateway.probe, path) != status:
            await asyncio.sleep(0.02)


async def test_it_is_not_ready_and_holds_requests_until_it_has_listed_services_and_replicas(tmp_path, monkeypatch):
    async with scripted_api() as (url, scripts), aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as client:
        named = {"name": "it", "context": {"cluster": "it", "user": "it"}, "cluster": {"server": url}, "user": {"token": "t"}}
        config = {"current-context": "it", "contexts": [named], "clusters": [named], "users": [named]}
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("PAGODA_KUBECONFIG", str(tmp_path / "kubeconfig"))
        started = start_gateway()
        gateway = await asyncio.to_thread(started.__enter__)
        try:
            await probed(gateway, PATH_STARTUP, 200)
            scripts[QUOTAS.path].say(page())
            scripts[SERVICES.path].say(page())
            assert "watch" not in await scripts[SERVICES.path].next_query()
            assert "watch" in await scripts[SERVICES.path].next_query()
            assert await asyncio.to_thread(gateway.probe, PATH_READY) == 503
            async with client.get(f"{gateway.url}/v1/models") as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (503, "not_synced")
            held = asyncio.create_task(client.post(f"{gateway.url}/v1/completions", json={"model": "nobody"}))
            await asyncio.wait([held], timeout=0.2)
            assert not held.done()
            scripts[SLICES.path].say(page())
            await probed(gateway, PATH_READY, 200)
            assert (await held).status == 404
        finally:
            await asyncio.to_thread(started.__exit__, None, None, None)
