"""LoraAdapters by kubectl on a real replica: each name answers as its files say, and files change under load without a wrong answer."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from pagoda_contracts.names import API_VERSION
from pagoda_devcluster.demo import install
from pydoc_answers import questions
from support.clients.streams import Load, alone, open_loop, together
from support.engine.adapter_files import matrices, write_adapter

pytestmark = pytest.mark.cluster

NAME = "adapted"
FOLDERS = ("one", "two", "three")
TOKENS = 24
ASKED = [qa.question for qa in questions()[:4]]
NEVER = 300  # s


@pytest.fixture(scope="module")
def loras(pagoda, tmp_path_factory):
    """Adapters of the model that nobody trained: each has much to say, and something else."""
    folder, config = tmp_path_factory.mktemp("loras"), json.loads((pagoda.model / "config.json").read_text())
    shape = (config["hidden_size"], config["num_attention_heads"] * config["head_dim"])
    modules = {f"model.layers.{layer}.self_attn.q_proj": shape for layer in range(config["num_hidden_layers"])}
    for seed, name in enumerate(FOLDERS):
        write_adapter(folder / name, matrices(modules, seed=seed), lora_alpha=1)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@pytest.fixture
def served(pagoda, namespace, loras):
    """A replica with two places for three adapters."""
    install.claim(pagoda.builder, pagoda.cluster, loras, namespace, "loras")
    line = pagoda.serve(namespace, NAME, pagoda.model, adapters={"maxLoaded": 2, "claims": ["loras"]})
    assert line.ready, line
    for folder in FOLDERS:
        spec = {"serviceRef": {"name": NAME}, "source": {"uri": f"pvc://loras/{folder}"}}
        pagoda.apply(namespace, {"apiVersion": API_VERSION, "kind": "LoraAdapter", "metadata": {"name": f"{NAME}-{folder}"}, "spec": spec})
    for folder in FOLDERS:
        until_ready(pagoda, namespace, folder)
    return namespace


def until_ready(pagoda, namespace, folder):
    name = f"loraadapter/{NAME}-{folder}"
    pagoda.cluster.kubectl("wait", name, "-n", namespace, "--for=condition=Ready", f"--timeout={NEVER}s")


async def answers(pagoda, name):
    return {question: stream.said for question, stream in (await alone(pagoda.url, name, ASKED, TOKENS)).items()}


async def test_each_name_answers_as_its_files_say_also_while_they_change_under_load(pagoda, served):
    known = {folder: await answers(pagoda, f"{NAME}-{folder}") for folder in FOLDERS}
    model = await answers(pagoda, NAME)
    for question in ASKED:
        assert len({json.dumps(said[question]) for said in (model, *known.values())}) == 4, "adapters that say the same prove nothing"
    changed = []

    async def change():
        patch = json.dumps({"spec": {"source": {"uri": "pvc://loras/three"}}})
        await asyncio.to_thread(pagoda.cluster.kubectl, "patch", "loraadapter", f"{NAME}-one", "-n", served, "--type=merge", "-p", patch)
        await asyncio.to_thread(until_ready, pagoda, served, "one")
        changed.append(time.monotonic())

    load = Load(ASKED, per_second=10, before=10, after=20, tokens=TOKENS, most=8)
    streams = await open_loop(pagoda.url, f"{NAME}-one", load, change)
    assert [stream.error for stream in streams if stream.error] == []
    new = [stream for stream in streams if stream.said == known["three"][stream.question]]
    old = [stream for stream in streams if stream.said == known["one"][stream.question]]
    assert len(new) + len(old) == len(streams), "an answer of other files"
    assert old
    assert [stream for stream in streams if stream.started > changed[0] and stream not in new] == []
    both = await asyncio.gather(*(together(pagoda.url, f"{NAME}-{folder}", ASKED, TOKENS) for folder in FOLDERS[1:]))
    assert [[stream.said for stream in found] for found in both] == [list(known[folder].values()) for folder in FOLDERS[1:]]
    await gone(pagoda, served)


async def gone(pagoda, served):
    """A deleted adapter's name is unknown, and the others answer."""
    await asyncio.to_thread(pagoda.cluster.kubectl, "delete", "loraadapter", f"{NAME}-one", "-n", served)
    async with asyncio.timeout(NEVER):
        while "404" not in str((await alone(pagoda.url, f"{NAME}-one", ASKED[:1], 1))[ASKED[0]].error):
            await asyncio.sleep(0.2)
    (left,) = (await alone(pagoda.url, f"{NAME}-two", ASKED[:1], 1)).values()
    assert left.error is None
