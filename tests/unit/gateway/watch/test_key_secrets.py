"""Which API keys the gateway has: what is read of a Secret, how the ring follows Secrets that change, and the file of keys."""

import asyncio
import base64
import json
from datetime import UTC, datetime

import msgspec
import pytest
from pagoda_contracts.names import LABEL_API_KEYS, LABEL_TENANT
from pagoda_contracts.resources.apikeys import new_key
from pagoda_gateway.access.keys import KeyRing, Refused
from pagoda_gateway.watch.cache import EndpointCache
from pagoda_gateway.watch.cluster import watch
from pagoda_gateway.watch.key_file import read_key_file
from pagoda_gateway.watch.key_secrets import read_secret, secrets_of
from support.servers.scripted_api import Held, event, page, scripted_api

NOW = datetime(2026, 11, 24, tzinfo=UTC)
KEYS = [new_key(bytes([number]) * 32, NOW) for number in range(3)]


def secret(name: str, *keys, version: str = "1", tenant: str | None = "team-a", **entries: str) -> dict:
    stored = {key.id: base64.b64encode(key.stored.document().encode()).decode() for key in keys}
    labels = {LABEL_API_KEYS: "true"} | ({LABEL_TENANT: tenant} if tenant is not None else {})
    metadata = {"name": name, "namespace": "pagoda-system", "resourceVersion": version, "labels": labels}
    return {"kind": "Secret", "metadata": metadata, "data": stored | entries}


def read(document: dict):
    return read_secret(msgspec.Raw(json.dumps(document).encode())).value


def test_an_entry_that_is_not_a_key_costs_that_entry_alone(capsys):
    found = read(secret("s", KEYS[0], other="bm90IGEga2V5", broken="***"))
    assert (found.tenant, found.keys) == ("team-a", {KEYS[0].id: KEYS[0].stored})
    logged = capsys.readouterr().out
    assert "other" in logged
    assert "broken" in logged
    assert "bm90IGEga2V5" not in logged


@pytest.mark.parametrize("tenant", [None, "", "a b"])
def test_keys_of_no_tenant_are_not_used(tenant):
    assert read(secret("s", KEYS[0], tenant=tenant)) is None


def test_a_secret_without_data_has_no_keys():
    document = secret("s")
    del document["data"]
    assert read(document).keys == {}


def tenants(ring: KeyRing) -> list[str | None]:
    """Whose each of KEYS is."""
    found = []
    for key in KEYS:
        try:
            found.append(ring.owner(key.text, NOW).tenant)
        except Refused:
            found.append(None)
    return found


class Rung(KeyRing):
    """Tells that a source changed."""

    def __init__(self):
        super().__init__(synced=False)
        self.changes = asyncio.Queue()

    def put(self, *source):
        super().put(*source)
        self.changes.put_nowait(tenants(self))

    def drop(self, source):
        super().drop(source)
        self.changes.put_nowait(tenants(self))

    async def next(self):
        return await asyncio.wait_for(self.changes.get(), 60)


@pytest.fixture
async def followed(tmp_path):
    """The ring, and the script of the Secrets' path."""
    async with scripted_api() as (url, scripts):
        named = {"name": "it", "context": {"cluster": "it", "user": "it"}, "cluster": {"server": url}, "user": {"token": "t"}}
        config = {"current-context": "it", "contexts": [named], "clusters": [named], "users": [named]}
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        ring = Rung()
        task = asyncio.create_task(watch(EndpointCache(), tmp_path / "kubeconfig", ("pagoda-system", ring)))
        yield ring, scripts[secrets_of("pagoda-system").path]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_ring_follows_secrets_that_come_change_and_go(followed):
    """A key is revoked in one Secret, one is added in another, and at last a Secret is deleted."""
    ring, script = followed
    events = Held()
    script.say(page(secret("s", KEYS[0], KEYS[1])), events)
    assert (await script.next_query())["labelSelector"] == f"{LABEL_API_KEYS}=true"
    assert await ring.next() == ["team-a", "team-a", None]
    assert "watch" in await script.next_query()
    assert ring.synced
    events.put_nowait(event("MODIFIED", secret("s", KEYS[1], version="11")))
    assert await ring.next() == [None, "team-a", None]
    events.put_nowait(event("ADDED", secret("t", KEYS[2], version="12", tenant="team-b")))
    assert await ring.next() == [None, "team-a", "team-b"]
    events.put_nowait(event("DELETED", secret("s", KEYS[1], version="13")))
    assert await ring.next() == [None, None, "team-b"]


async def test_while_the_api_server_is_away_the_keys_stay_valid(followed):
    ring, script = followed
    script.say(page(secret("s", KEYS[0])), 503, 503)
    assert ["watch" in await script.next_query() for _ in range(4)] == [False, True, False, False]
    assert tenants(ring) == ["team-a", None, None]


def test_a_file_of_keys_is_read_whole_or_refused(tmp_path):
    ring, file = KeyRing(), tmp_path / "keys.json"
    file.write_text(json.dumps({"team-a": {KEYS[0].id: json.loads(KEYS[0].stored.document())}, "team-b": {}}))
    read_key_file(file, ring)
    assert tenants(ring) == ["team-a", None, None]
    for broken in ("{", '{"a b": {}}', '{"a": {"id": {"sha256": "x"}}}', "[]"):
        file.write_text(broken)
        with pytest.raises(ValueError, match=r"keys\.json"):
            read_key_file(file, KeyRing())
