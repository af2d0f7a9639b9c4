"""LoRA adapters over HTTP and gRPC: names of models, vLLM's endpoints, versions that requests keep, metrics and events."""

from __future__ import annotations

import asyncio
import hashlib

import httpx
import pytest
from pagoda_contracts.launch import AdapterModule, AdaptersConfig, AuthConfig
from pagoda_contracts.names import GRPC_GENERATE
from pagoda_contracts.pb import inference_pb2 as pb
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.simulated.device.worker import expected_tokens, read_digest
from pagoda_daemon.simulated.replicas.text import VOCAB
from support.engine.adapter_files import write_adapter
from support.servers.local_front import NAME, local_config, local_front

PROMPT = list(range(5, 45))
ADDED = "Success: LoRA adapter '{}' added successfully."


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "adapters"
    for name in ("one", "two", "three"):
        write_adapter(folder / name, name.encode())
    return folder


def digest(folder):
    return read_digest(folder, None).digest


def adapted(tmp_path, root, *names, **changes):
    modules = tuple(AdapterModule(name=name, path=str(root / name)) for name in names)
    adapters = AdaptersConfig(max_loaded=3, modules=modules, directory=str(root))
    return local_config(tmp_path, adapters=adapters, **changes)


def client(front, **headers):
    return httpx.AsyncClient(base_url=f"http://{front.http}", headers=headers, timeout=300)


async def tokens(http, model, count=12):
    body = {"model": model, "prompt": PROMPT, "max_tokens": count, "ignore_eos": True, "return_token_ids": True}
    answer = (await http.post("/v1/completions", json=body)).json()
    assert answer["model"] == model
    return tuple(answer["choices"][0]["token_ids"])


async def load(http, name, path, **more):
    return await http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path), **more})


async def unload(http, name):
    return await http.post("/v1/unload_lora_adapter", json={"lora_name": name})


async def test_a_name_answers_with_its_adapter_on_every_interface_and_the_model_with_none(tmp_path, root):
    async with local_front(adapted(tmp_path, root, "one")) as front, client(front) as http, front.channel() as channel:
        own, base = (expected_tokens(PROMPT, 12, VOCAB, adapter) for adapter in (digest(root / "one"), ""))
        assert own != base
        for _ in range(2):  # the second time from the cache
            assert await tokens(http, NAME) == base
            assert await tokens(http, "one") == own
        request = pb.GenerateRequest(model="one", prompt_tokens=PROMPT, sampling=pb.Sampling(max_tokens=12, ignore_eos=True))
        assert [token async for event in generate(channel, request) for token in event.tokens.ids] == list(own)
        chat = {"model": "one", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize", "/v1/embeddings")
        bodies = (chat, chat, {"model": "one", "input": "hi"}, {"model": "one", "prompt": "hi"}, {"model": "one", "input": "hi"})
        assert [(await http.post(path, json=body)).status_code for path, body in zip(paths, bodies, strict=True)] == [200] * 5
        refused = await http.post("/v1/completions", json={"model": "two", "prompt": "a"})
        assert refused.json()["error"]["message"] == "model 'two' is not served here, accepted: toy, one"


def generate(channel, request):
    call = channel.unary_stream(
        GRPC_GENERATE, request_serializer=pb.GenerateRequest.SerializeToString, response_deserializer=pb.GenerateResponse.FromString
    )
    return call(request, timeout=300)


async def test_models_lists_adapters_with_their_parent(tmp_path, root):
    async with local_front(adapted(tmp_path, root, "one")) as front, client(front) as http:
        base, own = (await http.get("/v1/models")).json()["data"]
        assert (base["id"], base["parent"]) == (NAME, None)
        assert (own["id"], own["parent"], own["root"]) == ("one", NAME, digest(root / "one"))
        assert (await http.get("/v1/models/one")).json() == own
        assert {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"} < (await http.get("/openapi.json")).json()["paths"].keys()


async def test_vllms_endpoints_answer_with_its_sentences_and_codes(tmp_path, root):
    async with local_front(adapted(tmp_path, root)) as front, client(front) as http:

        async def said(asked):
            answer = await asked
            error = answer.json()["error"]
            assert answer.status_code == error["code"]
            return error["code"], error["type"], error["message"]

        loaded = await load(http, "a", "one")
        assert (loaded.status_code, loaded.text) == (200, ADDED.format("a"))
        assert (await load(http, "b", root / "two")).text == ADDED.format("b")
        again = await load(http, "a", "two")
        assert (again.status_code, again.json()) == (
            400,
            {
                "error": {
                    "message": "The lora adapter 'a' has already been loaded. If you want to load the adapter in place, "
                    "set 'load_inplace' to True.",
                    "type": "InvalidUserInput",
                    "code": 400,
                    "param": None,
                }
            },
        )
        assert (await said(load(http, "", "one"))) == (400, "InvalidUserInput", "Both 'lora_name' and 'lora_path' must be provided.")
        assert (await said(load(http, "c", "none")))[:2] == (404, "NotFoundError")
        assert (await said(load(http, "c", "../text")))[:2] == (400, "BadRequestError")
        assert (await said(load(http, NAME, "one")))[2] == "The lora adapter name 'toy' conflicts with a served base model."
        assert (await said(load(http, "a\n", "one")))[:2] == (400, "BadRequestError")
        assert (await load(http, "a", "three", load_inplace=True)).text == ADDED.format("a")
        assert (await load(http, "c", "one")).status_code == 200
        assert (await said(load(http, "d", "one")))[2] == "3 adapters are loaded; at most 3 may be: unload one"
        gone = await unload(http, "b")
        assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'b' removed successfully.")
        assert (await said(unload(http, "b"))) == (404, "NotFoundError", "The lora adapter 'b' cannot be found.")
        nameless = (400, "InvalidUserInput", "'lora_name' needs to be provided to unload a LoRA adapter.")
        assert (await said(unload(http, ""))) == nameless
        assert [card["id"] for card in (await http.get("/v1/models")).json()["data"]] == [NAME, "a", "c"]
        assert await tokens(http, "a") == expected_tokens(PROMPT, 12, VOCAB, digest(root / "three"))


async def test_a_request_keeps_the_version_that_it_began_with(tmp_path, root):
    """While its name goes over to another content, and is gone in the end. The old version is released with its last request."""
    long = 300
    async with local_front(adapted(tmp_path, root, "one", step_ms=2)) as front, client(front) as http:
        first = digest(root / "one")
        slow = asyncio.create_task(tokens(http, "one", long))
        await front.until(lambda: front.front.replica.stats.running)
        assert (await load(http, "one", "two", load_inplace=True)).status_code == 200
        assert await tokens(http, "one") == expected_tokens(PROMPT, 12, VOCAB, digest(root / "two"))
        assert not slow.done()
        assert first in held(front)
        assert (await unload(http, "one")).status_code == 200
        assert await slow == expected_tokens(PROMPT, long, VOCAB, first)
        assert (await load(http, "last", "three")).status_code == 200
        await tokens(http, "last")  # behind the release and the load, on the same wire
        assert held(front) == {digest(root / "three")}


def held(front):
    return {adapter.digest for adapter in front.engine.worker.adapters.held.values()}


async def test_without_adapters_the_endpoints_are_not_there_and_without_a_directory_they_load_nothing(tmp_path, root):
    async with local_front(local_config(tmp_path)) as front, client(front) as http:
        assert (await load(http, "a", root / "one")).status_code == 404
    config = local_config(tmp_path, adapters=AdaptersConfig())
    async with local_front(config) as front, client(front) as http:
        refused = await load(http, "a", root / "one")
        assert (refused.status_code, "--lora-dir" in refused.text) == (403, True)


async def test_only_the_key_of_an_administrator_changes_adapters(tmp_path, root):
    keys = tmp_path / "keys"
    lines = [f"{hashlib.sha256(key).hexdigest()} {key.decode()} role={role}\n" for key, role in ((b"user", "client"), (b"root", "admin"))]
    keys.write_text("".join(lines))
    config = adapted(tmp_path, root, auth=AuthConfig(keys_file=str(keys)))
    async with local_front(config) as front:
        async with client(front, authorization="Bearer user") as http:
            refused = await load(http, "a", "one")
            assert (refused.status_code, "role=admin" in refused.text) == (403, True)
            assert (await unload(http, "a")).status_code == 403
        async with client(front, authorization="Bearer root") as http:
            assert (await load(http, "a", "one")).status_code == 200
            assert (await http.post("/v1/completions", json={"model": "a", "prompt": "x"})).status_code == 403


async def test_metrics_name_the_adapters_at_work(tmp_path, root):
    config = adapted(tmp_path, root, "one", "two", step_ms=5, engine={"max_concurrency": 1})
    async with local_front(config) as front, client(front) as http:
        running = asyncio.create_task(tokens(http, "one", 400))
        await front.until(lambda: front.front.replica.stats.running)
        waiting = asyncio.create_task(tokens(http, "two", 1))
        await front.until(lambda: front.front.replica.stats.waiting)
        wanted = 'max_lora="3",waiting_lora_adapters="two",running_lora_adapters="one"'
        async with asyncio.timeout(300):
            while wanted not in (await http.get("/metrics")).text:
                assert not running.done()
        running.cancel()
        waiting.cancel()


@pytest.mark.parametrize("names", [(NAME,), ("one", "one"), ("a b",), ("a", "b", "c", "d")])
async def test_names_that_cannot_be_are_refused_at_the_start(tmp_path, root, names):
    modules = tuple(AdapterModule(name=name, path=str(root / "one")) for name in names)
    config = local_config(tmp_path, adapters=AdaptersConfig(max_loaded=3, modules=modules))
    with pytest.raises(ConfigRejected, match=r"adapters\.modules"):
        async with local_front(config):
            pass
