"""https:// at a web server that lists nothing: what is asked for, and what cannot be a model."""

import json

import pytest
from pagoda_fetch.core.errors import ConfigRejected, NotFound, Refused
from support.clients.fetch_sources import INDEX, shelf
from support.clients.fetching import contents, model_files
from support.servers.fetch_hub import running_hub

FILES = model_files(size=100_000)


@pytest.fixture
def hub():
    with running_hub(dict(FILES)) as running:
        yield running


async def test_one_file_of_weights_needs_no_index(tmp_path):
    body = FILES["model-00001-of-00002.safetensors"]
    with running_hub({"config.json": FILES["config.json"], "model.safetensors": body}) as hub:
        source = shelf("https", hub)
        del hub.files[INDEX], hub.extra[f"/models/llama/{INDEX}"]
        assert contents(await source.fetch(source.fetcher(tmp_path))) == hub.files


async def test_a_file_of_the_index_that_is_missing_is_named(tmp_path, hub):
    source = shelf("https", hub)
    del hub.extra["/models/llama/model-00002-of-00002.safetensors"]
    with pytest.raises(NotFound, match=r"model-00002-of-00002\.safetensors is not there"):
        await source.fetch(source.fetcher(tmp_path))


@pytest.mark.parametrize("index", ["[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', "no"])
async def test_an_index_that_is_none_is_refused(tmp_path, hub, index):
    source = shelf("https", hub)
    hub.files[INDEX] = index.encode()
    with pytest.raises(Refused, match="index"):
        await source.fetch(source.fetcher(tmp_path))


@pytest.mark.parametrize("name", ["../../secret.safetensors", "folder/a.safetensors", "weights.bin", "a\\b.safetensors"])
async def test_an_index_leads_nowhere_else(tmp_path, hub, name):
    source = shelf("https", hub)
    hub.files[INDEX] = json.dumps({"weight_map": {"a": name}}).encode()
    with pytest.raises(Refused):
        await source.fetch(source.fetcher(tmp_path))
    assert {path for path, _ in hub.asked} == {f"/models/llama/{INDEX}"}


async def test_a_folder_without_a_model_is_not_found_and_a_server_without_lengths_is_refused(tmp_path, hub):
    source = shelf("https", hub)
    hub.lengths = False
    with pytest.raises(Refused, match="no length"):
        await source.fetch(source.fetcher(tmp_path))
    hub.extra.clear()
    with pytest.raises(NotFound, match="no file of a model"):
        await source.fetch(source.fetcher(tmp_path))


async def test_no_credential_is_sent_to_a_web_server(tmp_path, hub):
    source = shelf("https", hub)
    source.words = {"HF_TOKEN": "hf_secret"}
    await source.fetch(source.fetcher(tmp_path))
    assert all("authorization" not in headers for _, headers in hub.asked)


async def test_it_has_no_revisions(tmp_path, hub):
    source = shelf("https", hub)
    source.revision = "v1"
    with pytest.raises(ConfigRejected, match="no revisions"):
        await source.fetch(source.fetcher(tmp_path))


async def test_a_bucket_that_says_403_of_what_is_not_there_is_read(tmp_path):
    body = FILES["model-00001-of-00002.safetensors"]
    with running_hub({"config.json": FILES["config.json"], "model.safetensors": body}) as hub:
        source = shelf("https", hub)
        del hub.files[INDEX], hub.extra[f"/models/llama/{INDEX}"]
        hub.absent = 403
        assert contents(await source.fetch(source.fetcher(tmp_path))) == hub.files
