"""Quotas of tenants on the route: a real gateway process, a real replica that asks for tokens, clients with keys."""

import asyncio
import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import aiohttp
import anthropic
import openai
import pytest
from pagoda_contracts.gateway_metrics import GATEWAY_TOKENS
from pagoda_contracts.launch import AdapterModule, AdaptersConfig
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_METRICS
from pagoda_contracts.resources.apikeys import new_key
from prometheus_client.parser import text_string_to_metric_families
from support.engine.adapter_files import write_adapter
from support.kube.issuer import Issuer
from support.servers.gateway_process import GatewayProcess, start_gateway, write_fleet
from support.servers.replica import NAME, Replica, replica_config, start_replica

pytestmark = pytest.mark.deep  # real processes, seconds each

NOW = datetime(2026, 11, 24, tzinfo=UTC)
TENANTS = ("tokens", "requests", "one", "models", "caps", "free", "usage")
KEYS = {tenant: new_key(tenant.ljust(32).encode(), NOW) for tenant in TENANTS}
LIMIT = 2000
ADAPTER = "pirate"
SPECS = {
    "tokens": {"limits": [{"window": "720h", "tokens": LIMIT}], "defaultMaxTokens": 5},
    "requests": {"limits": [{"window": "720h", "requests": 2}]},
    "one": {"maxConcurrency": 1},
    "models": {"models": ["another", NAME + "s"]},
    "caps": {"maxContextTokens": 40, "maxOutputTokens": 20, "defaultMaxTokens": 3},
}


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]

    @property
    def usage(self) -> dict[str, Any]:
        return json.loads(self.body)["usage"]


@dataclass
class Route:
    """A gateway with a replica behind it."""

    gateway: GatewayProcess
    replica: Replica
    scraper: str  # the bearer token of one who may read the replica's metrics

    async def ask(self, tenant: str, path: str = "/v1/completions", *, leave_after: int | None = None, **fields: Any) -> Answer:
        """`leave_after`: the client closes its connection after so many events."""
        prompt = {} if "messages" in fields else {"prompt": "abc", "ignore_eos": True} if path == "/v1/completions" else {"prompt": "abc"}
        headers = {"authorization": f"Bearer {KEYS[tenant].text}"}
        async with (
            aiohttp.ClientSession() as client,
            client.post(self.gateway.url + path, json={"model": NAME} | prompt | fields, headers=headers) as answer,
        ):
            if leave_after is None:
                return Answer(answer.status, answer.headers.copy(), await answer.read())
            events = [await answer.content.readuntil(b"\n\n") for _ in range(leave_after)]
            answer.close()
            return Answer(answer.status, answer.headers.copy(), b"".join(events))

    async def charged(self, tenant: str) -> int:
        """Tokens that are used or reserved now: /tokenize reserves none."""
        answer = await self.ask(tenant, "/tokenize")
        return int(answer.headers["x-ratelimit-limit-tokens"]) - int(answer.headers["x-ratelimit-remaining-tokens"])

    def used(self, tenant: str) -> dict[str, float]:
        """Tokens by kind, as the metrics say."""
        families = text_string_to_metric_families(self.gateway.scrape())
        samples = [sample for family in families for sample in family.samples if sample.name == "pagoda_gateway_tokens_total"]
        return {one.labels["kind"]: one.value for one in samples if one.labels["tenant"] == tenant}

    def used_by_all(self) -> float:
        """Prompt and answer tokens of all tenants, as the gateway says."""
        return sum(value for tenant in KEYS for value in self.used(tenant).values())

    def counted_by_replica(self) -> float:
        """Prompt and answer tokens, as the replica says."""
        headers = {"authorization": f"Bearer {self.scraper}"}
        with urllib.request.urlopen(urllib.request.Request(f"http://{self.replica.http}/metrics", headers=headers)) as scraped:
            families = text_string_to_metric_families(scraped.read().decode())
        names = {"vllm:prompt_tokens_total", "vllm:generation_tokens_total"}
        return sum(sample.value for family in families for sample in family.samples if sample.name in names)


@pytest.fixture(scope="module")
def route(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Route]:
    folder = tmp_path_factory.mktemp("quotas")
    issuer = Issuer(folder)
    (folder / "token").write_text(issuer.token(ROLE_GATEWAY))
    (folder / "keys.json").write_text(json.dumps({t: {k.id: json.loads(k.stored.document())} for t, k in KEYS.items()}))
    (folder / "quotas.json").write_text(json.dumps({"quotas": [quota(name, spec) for name, spec in SPECS.items()]}))
    adapters = AdaptersConfig(modules=(AdapterModule(name=ADAPTER, path=str(write_adapter(folder / ADAPTER, b"any"))),))
    with start_replica(replica_config(folder, auth=issuer.config(), step_ms=2.0, adapters=adapters)) as replica:
        endpoints = [{"http": replica.http, "grpc": replica.grpc}]
        write_fleet(folder / "fleet.json", [{"name": "ns/s", "served_names": [NAME, ADAPTER], "endpoints": endpoints}])
        files = {"--fleet": "fleet.json", "--keys": "keys.json", "--quotas": "quotas.json", "--token": "token"}
        options = (word for name, file in files.items() for word in (name, str(folder / file)))
        with start_gateway("--usage-lines", "true", *options) as gateway:
            yield Route(gateway, replica, issuer.token(ROLE_METRICS))


def quota(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    subjects = {"apiKeysSecretRef": {"namespace": "any", "name": f"pagoda-keys-{name}"}}
    return {"metadata": {"name": f"quota-{name}"}, "spec": {"subjects": subjects, **spec}}


@pytest.mark.parametrize("way", ["whole", "stream", "unbounded", "chat", "cut"])
async def test_what_the_replica_counted_is_charged_and_the_rest_comes_back(route, way):
    """A stream that its client leaves is charged what the engine had generated when its last bytes came."""
    before = await route.charged("tokens")
    fields: dict[str, Any] = {"whole": {"max_tokens": 7}, "chat": {"max_tokens": 9}, "stream": {"max_tokens": 9, "stream": True}}.get(
        way, {}
    )
    if way in ("chat", "unbounded"):
        fields["messages"] = [{"role": "user", "content": "abc"}]
        answer = await route.ask("tokens", "/v1/chat/completions", ignore_eos=True, **fields)
    elif way == "cut":
        answer = await route.ask("tokens", leave_after=3, max_tokens=400, stream=True)
    else:
        answer = await route.ask("tokens", **fields)
    assert answer.status == 200, answer
    assert b": pagoda" not in answer.body
    async with asyncio.timeout(120):  # the gateway may still hear that the client left
        while (charged := await route.charged("tokens") - before) > 256:
            await asyncio.sleep(0.02)
    if way in ("whole", "unbounded", "chat"):
        assert charged == answer.usage["total_tokens"]
        assert answer.usage["completion_tokens"] == {"whole": 7, "unbounded": 5, "chat": 9}[way]
    else:
        assert charged == 3 + 9 if way == "stream" else 3 + 3 <= charged < 100
    assert sum(route.used("tokens").values()) == before + charged


async def test_a_request_that_never_fits_is_told_so_and_not_to_come_back(route):
    answer = await route.ask("tokens", max_tokens=LIMIT)
    assert (answer.status, answer.error["code"], answer.headers["x-should-retry"]) == (429, "rate_limit_exceeded", "false")
    assert answer.error["message"].startswith("TenantQuota quota-tokens allows 2000 tokens within 720h, and this request reserves")
    assert "retry-after" not in answer.headers


async def test_requests_of_a_window_run_out(route):
    answers = [await route.ask("requests", max_tokens=1) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert "2 were admitted. The window ends in" in answers[2].error["message"]
    assert int(answers[2].headers["retry-after"]) <= 720 * 3600
    refused = [sample for sample in route.gateway.scrape().splitlines() if sample.startswith("pagoda_gateway_over_quota_total{")]
    assert 'pagoda_gateway_over_quota_total{limit="requests",quota="quota-requests"} 1.0' in refused


async def test_a_place_is_free_again_when_its_request_ends_or_its_client_leaves(route):
    headers, body = {"authorization": f"Bearer {KEYS['one'].text}"}, {"model": NAME, "prompt": "x", "max_tokens": 200, "stream": True}
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{route.gateway.url}/v1/completions", json=body | {"ignore_eos": True}) as stream,
    ):
        await stream.content.readuntil(b"\n\n")
        refused = await route.ask("one", max_tokens=1)
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert "allows 1 requests at the same time, and 1 are under way" in refused.error["message"]
        await stream.read()
    assert (await route.ask("one", max_tokens=300, stream=True, leave_after=1)).status == 200
    async with asyncio.timeout(120):
        while (await route.ask("one", "/tokenize")).status != 200:
            await asyncio.sleep(0.02)


async def test_only_allowed_models_are_listed_and_served(route):
    headers = {"authorization": f"Bearer {KEYS['models'].text}"}
    async with aiohttp.ClientSession(headers=headers) as client, client.get(f"{route.gateway.url}/v1/models") as listed:
        assert (await listed.json())["data"] == []
    answer = await route.ask("models")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (404, "model_not_found", "model")
    assert "did you mean 'another'?" in (await route.ask("models", model="anothre")).error["message"]
    assert f"did you mean '{NAME}'?" in (await route.ask("free", model=NAME + "x")).error["message"]
    assert f"'{NAME}'" not in (await route.ask("models", model=NAME + "s")).error["message"], "a name that it may not use"


async def test_context_and_answer_are_capped(route):
    """The replica counts the prompt, the gateway the answer that is asked for."""
    messages = [{"role": "user", "content": "x"}]
    assert (await route.ask("caps", "/v1/chat/completions", messages=messages, ignore_eos=True)).usage["completion_tokens"] == 3
    assert (await route.ask("caps")).usage["completion_tokens"] == 3, "also where the replica has a default of its own"
    assert (await route.ask("caps", max_tokens=20)).usage["completion_tokens"] == 20
    answer = await route.ask("caps", max_tokens=21)
    assert (answer.status, answer.error["message"]) == (400, "max_tokens must be at most 20 by TenantQuota quota-caps, got 21")
    answer = await route.ask("caps", prompt="a" * 100, max_tokens=1)
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 40 tokens" in answer.error["message"]


async def test_clients_of_both_apis_raise_their_own_error_of_a_quota(route):
    async with openai.AsyncOpenAI(base_url=f"{route.gateway.url}/v1", api_key=KEYS["tokens"].text, max_retries=2) as client:
        with pytest.raises(openai.RateLimitError):
            await client.completions.create(model=NAME, prompt="abc", max_tokens=LIMIT)
    async with anthropic.AsyncAnthropic(base_url=route.gateway.url, api_key=KEYS["tokens"].text, max_retries=2) as other:
        with pytest.raises(anthropic.RateLimitError) as refused:
            await other.messages.create(model=NAME, max_tokens=LIMIT, messages=[{"role": "user", "content": "x"}])
    assert refused.value.response.headers["anthropic-ratelimit-tokens-limit"] == str(LIMIT)


async def test_without_a_quota_no_limit_is_sent_but_usage_is_counted(route):
    answer = await route.ask("free", max_tokens=4)
    assert answer.status == 200
    assert not [name for name in answer.headers if "ratelimit" in name.lower()]
    assert route.used("free") == {"prompt": 3.0, "cached": 0.0, "answer": 4.0}


async def test_usage_is_told_by_tenant_key_service_adapter_and_class(route):
    """In metrics and as lines of JSON. `flex` is OpenAI's word for requests that may wait."""
    kinds = [{}, {"service_tier": "flex"}, {"model": ADAPTER}, {"model": ADAPTER, "service_tier": "flex", "stream": True}]
    for more in kinds:
        assert (await route.ask("usage", max_tokens=4, **more)).status == 200
    told = [("", "interactive"), ("", "batch"), (ADAPTER, "interactive"), (ADAPTER, "batch")]
    samples = [sample for family in text_string_to_metric_families(route.gateway.scrape()) for sample in family.samples]
    counted = [one for one in samples if one.labels.get("tenant") == "usage" and one.name.endswith("_total")]
    found = {tuple(one.labels[name] for name in GATEWAY_TOKENS.labels): one.value for one in counted}
    who = ("usage", KEYS["usage"].id, "ns/s")
    assert found == {(*who, *how, kind): tokens for how in told for kind, tokens in (("prompt", 3), ("cached", 0), ("answer", 4))}
    async with asyncio.timeout(120):  # lines are written behind the answers
        while (
            len(
                lines := [
                    line for line in map(json.loads, route.gateway.log.copy()) if line["event"] == "usage" and line["tenant"] == "usage"
                ]
            )
            < 4
        ):
            await asyncio.sleep(0.02)
    assert [(line["tenant"], line["key"], line["service"], line["adapter"], line["class"]) for line in lines] == [
        (*who, *how) for how in told
    ]
    assert [line["model"] for line in lines] == [NAME, NAME, ADAPTER, ADAPTER]
    assert {(line["prompt_tokens"], line["cached_tokens"], line["answer_tokens"], line["status"]) for line in lines} == {(3, 0, 4, 200)}


async def test_the_sum_over_tenants_is_what_the_replica_counted_itself(route):
    """Answers in whole and in parts, of tenants with and without a quota, one after the other and side by side."""
    mine, theirs = route.used_by_all(), route.counted_by_replica()
    answers = [route.ask(tenant, max_tokens=4 + at, stream=at % 2 == 0) for at, tenant in enumerate(("free", "caps", "free", "caps"))]
    whole = await asyncio.gather(*answers, route.ask("caps", "/v1/chat/completions", messages=[{"role": "user", "content": "x"}]))
    assert [answer.status for answer in whole] == [200] * 5
    async with asyncio.timeout(120):  # the engine's last beat may be on its way
        while (more := route.counted_by_replica() - theirs) != route.used_by_all() - mine:
            await asyncio.sleep(0.05)
    assert more > 4 * 3 + 4 + 5 + 6 + 7
