"""`inspect`: a model's sizes and config without its weights, short enough for a termination message."""

import json

import pytest
from pagoda_fetch.core.address import parse
from pagoda_fetch.core.errors import Mismatch, Refused
from pagoda_fetch.download.inspecting import LIMIT, compact, inspect, line
from pagoda_fetch.download.job import Order
from pagoda_sizing.families import parse_model
from pagoda_sizing.published import published
from support.clients.fetching import CONFIG, LARGE, TAKEN, Fetcher, model_files
from support.servers.fetch_hub import COMMIT, running_hub

FILES = model_files()


@pytest.fixture
def hub():
    with running_hub(dict(FILES)) as running:
        yield running


def ask(tmp_path, hub):
    return inspect(Order(parse("hf://org/model")), Fetcher(tmp_path, hub.url).around)


async def test_it_reports_sizes_and_moves_no_weights(tmp_path, hub):
    report = await ask(tmp_path, hub)
    assert report["weightBytes"] == sum(len(body) for name, body in FILES.items() if name.endswith(".safetensors"))
    assert (report["files"], report["bytes"], report["revision"]) == (len(TAKEN), sum(len(FILES[name]) for name in TAKEN), COMMIT)
    assert report["config"] == {"model_type": "llama", "hidden_size": 64}
    assert set(hub.sent) == {"config.json"}
    assert len(line(report)) < LIMIT < len(json.dumps(CONFIG))
    assert LARGE not in hub.sent


async def test_a_config_that_stays_too_long_is_refused(tmp_path, hub):
    hub.files["config.json"] = json.dumps({f"key{n}": n for n in range(2000)}).encode()
    with pytest.raises(Refused, match="at most 4000"):
        await ask(tmp_path, hub)


@pytest.mark.parametrize("body", [b"[1]", b"{", b"[" * 100_000], ids=["list", "half", "deep"])
async def test_a_config_that_is_none_is_refused(tmp_path, hub, body):
    hub.files["config.json"] = body
    with pytest.raises((Refused, Mismatch)):
        await ask(tmp_path, hub)


@pytest.mark.parametrize("known", published(), ids=lambda known: known.name)
def test_sizing_reads_the_same_model_out_of_it(known):
    long = {
        "label2id": dict.fromkeys(map(str, range(3000)), 1),
        "rope_scaling": {"type": "longrope", "long_factor": [1.0] * 64, "short_factor": [1.0] * 64},
        "auto_map": {"a": "b" * 500},
    }
    short = compact(known.config | long)
    assert parse_model(short) == parse_model(known.config)
    assert (len(line(short)) < LIMIT - 300, short["auto_map"], short["rope_scaling"]) == (True, True, {"type": "longrope"})
