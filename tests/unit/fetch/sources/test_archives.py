"""oci:// with layers that are archives: modelcars, ModelKits, folders of `oras push`; what is hostile in them; cuts and the next start."""

import gzip
import json
import tarfile

import pytest
from pagoda_fetch.core.address import parse
from pagoda_fetch.core.errors import Mismatch, NoRoom, Refused, Unreachable
from pagoda_fetch.download.inspecting import inspect
from pagoda_fetch.download.job import Order
from pagoda_fetch.volume.store import Store
from support.clients.archives import IMAGE, KIT, digest, image, kit, shelve, special, tar
from support.clients.fetching import LARGE, TAKEN, Fetcher, contents, model_files
from support.servers.fetch_hub import Fault, running_hub

FILES = model_files(300_000)
RIGHT = {name: FILES[name] for name in TAKEN}
BASE = tar({"bin": special(tarfile.DIRTYPE), "bin/sh": b"#!", "bin/ls": special(tarfile.LNKTYPE, "bin/sh"), "dev/null": special(b"3")})


def below(folder, files=FILES):
    return {f"{folder}/{name}": body for name, body in files.items()}


@pytest.fixture
def hub():
    with running_hub({}) as running:
        yield running


def fetch(tmp_path, hub, made, **limits):
    return Fetcher(tmp_path, **limits).fetch(shelve(hub, *made), "v1")


FOLDER = {"org.opencontainers.image.title": "m", "io.deis.oras.content.unpack": "true"}
# A build that copies, changes modes (which copies all again), and removes.
CAR = (
    BASE,
    tar(below("models", {**FILES, "config.json": b"{}", "chat_template.jinja": b"old"})),
    tar(below("./models", {"config.json": FILES["config.json"], ".wh.chat_template.jinja": b"", "sub/config.json": b"[]"})),
)
SHAPES = {
    "modelcar": image(*CAR),
    "ModelKit": kit({"model": tar(below("model")), "code": b"not read"}),
    "ModelKit, parts": kit(
        {"model": tar({LARGE: FILES[LARGE]}), "modelpart": tar({n: b for n, b in FILES.items() if n != LARGE})}, "+gzip"
    ),
    "folder of oras": (
        [(IMAGE, gzip.compress(tar(below("m"))), {**FOLDER, "io.deis.oras.content.digest": digest(tar(below("m")))})],
        ("x/y", b"{}"),
    ),
    "files beside an archive": (
        [
            (KIT.format("model"), tar({n: b for n, b in FILES.items() if n != LARGE}), {}),
            ("application/vnd.kitops.modelkit.model.v1.raw", FILES[LARGE], {"org.opencontainers.image.title": LARGE}),
        ],
        ("x/y", b"{}"),
    ),
}


@pytest.mark.parametrize("made", SHAPES.values(), ids=SHAPES)
async def test_a_model_in_archives_arrives_whole_and_nothing_else(tmp_path, hub, made):
    fetcher = Fetcher(tmp_path)
    address = shelve(hub, *made)
    assert contents(await fetcher.fetch(address, "v1")) == RIGHT
    assert (fetcher.staged(), len(fetcher.published())) == ({}, 1)
    report = await inspect(Order(parse(address, "v1")), fetcher.around)
    assert report["config"] == {"model_type": "llama", "hidden_size": 64}
    assert report["bytes"] == sum(len(body) for (media, body, _) in made[0] if "dataset" not in media and "code" not in media)
    again = hub.sent.copy()
    assert contents(await fetcher.fetch(address, "v1")) == RIGHT
    assert hub.sent == again


@pytest.mark.parametrize("name", ["models/../../evil.json", "models/evil.safetensors"])
async def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, hub, name):
    fetcher = Fetcher(tmp_path)
    content = b"x" if ".." in name else special(tarfile.SYMTYPE, "/etc/passwd")
    with pytest.raises(Refused):
        await fetcher.fetch(shelve(hub, *image(BASE, tar({**below("models"), name: content}))), "v1")
    assert (fetcher.published(), fetcher.staged(), list(fetcher.root.glob(".staging/*"))) == ([], {}, [])
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(("kind", "note"), [("modelcar", "; all layers of the image are counted.*"), ("ModelKit", "")])
async def test_a_volume_that_is_too_small_is_told_at_once_and_what_was_counted(tmp_path, hub, kind, note):
    fetcher = Fetcher(tmp_path)
    fetcher.store = Store(fetcher.root, reserve=0, free=lambda _: 1000)
    with pytest.raises(NoRoom, match=rf"1000 B are free{note}$"):
        await fetcher.fetch(shelve(hub, *SHAPES[kind]), "v1")
    assert not hub.sent


async def test_room_is_asked_for_by_what_comes_out(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("pagoda_fetch.download.job._ROOM_EVERY", 100_000)
    fetcher = Fetcher(tmp_path)
    looks = iter([10_000_000])
    fetcher.store = Store(fetcher.root, reserve=0, free=lambda _: next(looks, -1))
    zeros = image(tar(below("models", {"config.json": b"{}", "model.safetensors": bytes(400_000)})))
    with pytest.raises(NoRoom):
        await fetcher.fetch(shelve(hub, *zeros), "v1")
    assert fetcher.staged() == {}


async def test_a_flipped_bit_is_fetched_again_once_and_then_refused(tmp_path, hub):
    made = SHAPES["ModelKit"]
    hub.faults["layer-0"] = Fault(flip_at=200_000)
    assert contents(await fetch(tmp_path / "once", hub, made)) == RIGHT
    hub.faults["layer-0"] = Fault(flip_at=200_000, times=99)
    with pytest.raises(Mismatch):
        await fetch(tmp_path / "always", hub, made)


async def test_a_cut_goes_on_where_it_was_cut_within_one_process(tmp_path, hub):
    made = image(tar(below("models")))
    hub.faults["layer-0"] = Fault(cut_after=250_000)
    assert contents(await fetch(tmp_path, hub, made)) == RIGHT
    assert hub.sent["layer-0"] < len(made[0][0][1]) + 100_000


async def test_after_a_restart_whole_layers_are_kept_and_others_begin_anew(tmp_path, hub):
    made = kit({"modelpart": tar({n: b for n, b in FILES.items() if n != LARGE}), "model": tar({LARGE: FILES[LARGE]})})
    address, fetcher = shelve(hub, *made), Fetcher(tmp_path, attempts=1, parallel=1)
    hub.faults["layer-1"] = Fault(cut_after=250_000)
    with pytest.raises(Unreachable):
        await fetcher.fetch(address, "v1")
    first = hub.sent["layer-0"]
    assert contents(await fetcher.fetch(address, "v1")) == RIGHT
    assert (hub.sent["layer-0"], hub.sent["layer-1"] > len(made[0][1][1]) + 200_000) == (first, True)


async def test_a_disk_that_fails_at_the_end_costs_no_download(tmp_path, hub, monkeypatch):
    address, fetcher = shelve(hub, *image(*CAR)), Fetcher(tmp_path)
    remember = Store.remember
    monkeypatch.setattr(Store, "remember", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(Unreachable, match="Input/output error"):
        await fetcher.fetch(address, "v1")
    monkeypatch.setattr(Store, "remember", remember)
    sent = hub.sent.copy()
    fetcher.store = Store(fetcher.root, reserve=0, free=lambda _: 0)  # nor needs it room again
    assert contents(await fetcher.fetch(address, "v1")) == RIGHT
    assert (hub.sent, fetcher.staged(), list(fetcher.root.glob(".staging/*"))) == (sent, {}, [])
    assert fetcher.seen[-1].done == fetcher.seen[-1].total > 0


@pytest.mark.parametrize("folder", ["", "llama/"])
async def test_an_inspection_leaves_out_the_weights_of_an_uncompressed_layer(tmp_path, hub, folder):
    """The config comes last."""
    entries = {"model.safetensors": bytes(5_000_000), "z.json": b"{}", "config.json": FILES["config.json"]}
    layer = tar({f"{folder}{name}": body for name, body in entries.items()})
    address = shelve(hub, *kit({"model": layer}))
    report = await inspect(Order(parse(address, "v1")), Fetcher(tmp_path).around)
    assert (report["config"]["hidden_size"], report["bytes"], report["layers"]) == (64, len(layer), 1)
    assert "compressed" not in report
    blob = f"/v2/org/model/blobs/{digest(layer)}"
    assert [headers.get("range") for headers in hub.asked_for(blob)] == [None, f"bytes={512 + 5_000_192}-{len(layer) - 1}"]


async def test_an_inspection_stops_at_the_config_of_a_compressed_layer(tmp_path, hub):
    files = {"config.json": FILES["config.json"], "model.safetensors": FILES[LARGE]}
    layers, config = image(BASE, tar(below("models/llama", files)), tar({"models/llama/z.json": b"{}"}))
    size = 2 * len(layers[1][1])
    layers[1] = (*layers[1][:2], {"org.cncf.model.file.metadata+json": json.dumps({"size": size})})
    address = shelve(hub, layers, config)
    hub.faults["layer-1"] = Fault(hold_after=150_000)
    report = await inspect(Order(parse(address, "v1")), Fetcher(tmp_path).around)
    assert report["bytes"] == size + len(layers[0][1]) + len(layers[2][1])
    assert report["compressed"] is True


async def test_an_inspection_keeps_configs_within_a_bound(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("pagoda_fetch.download.peeking._MOST", 3000)
    many = {f"models/a/{n}/config.json": b"{}" + b" " * 900 for n in range(4)}
    with pytest.raises(Refused, match=r"more than 2\.9 KiB of config\.json files"):
        await inspect(Order(parse(shelve(hub, *image(tar(many))), "v1")), Fetcher(tmp_path).around)


async def test_an_inspection_says_where_it_looked(tmp_path, hub):
    address = shelve(hub, *image(BASE, tar(FILES)))
    with pytest.raises(Refused, match=r"no config\.json below models/"):
        await inspect(Order(parse(address, "v1")), Fetcher(tmp_path).around)
