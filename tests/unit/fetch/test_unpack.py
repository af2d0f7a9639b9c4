"""A layer on its way to the disk, without a network: what is taken of it, what is refused, and that nothing is ever written elsewhere."""

import errno
import gzip
import hashlib
import os
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_fetch.core import archive
from pagoda_fetch.core.errors import FetchError, LockLost, Mismatch, Refused, Unreachable
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Checksum, Layer, Listing, RemoteFile
from pagoda_fetch.download.pull import Work, pull
from pagoda_fetch.volume.unpack import TREE, Unpacking, assemble, assembled
from support.clients.archives import digest, special, tar
from support.clients.fetching import QUICK

MODEL = {"models/config.json": b"{}", "models/model.safetensors": b"x" * 700}
WIDE = Limits()
BASE = tar({"bin": special(tarfile.DIRTYPE), "bin/sh": b"#!", "bin/ls": special(tarfile.LNKTYPE, "bin/sh"), "dev/null": special(b"3")})


class Volume:
    """Layers into a staging folder, beside which nothing may appear."""

    def __init__(self, root):
        self.root, self.staging, self.files = root, root / "staging", []
        self.staging.mkdir()
        self.grown = 0

    def take(self, body, form="gzip", promised="", limits=WIDE, step=1000, packed=None):
        blob = packed if packed is not None else gzip.compress(body, 1) if form == "gzip" else body
        checksum = Checksum("sha256", hashlib.sha256(blob).hexdigest())
        layer = Layer(form, within="models", diff_id=promised)
        file = RemoteFile(f".layer-{len(self.files):05d}", len(blob), digest(blob), "", checksum, layer)
        self.files.append(file)
        sink = Unpacking(self.staging, file, limits, self.grew)
        with closing(sink):
            sink.begin()
            for start in range(0, len(blob), step):
                sink.write(blob[start : start + step])
            return sink.finish()

    def grew(self, count):
        self.grown += count

    def tree(self):
        sizes = assemble(self.staging, Listing(tuple(self.files)), Limits())
        found = {path.name: path.read_bytes() for path in self.made()}
        assert {name: (len(body), hashlib.sha256(body).hexdigest()) for name, body in found.items()} == sizes
        return found

    def made(self):
        return sorted((self.staging / TREE).glob("*"))

    def outside(self):
        return [path for path in self.root.rglob("*") if path != self.staging and self.staging not in path.parents]


@pytest.fixture
def volume(tmp_path):
    return Volume(tmp_path)


def hostile(name, content):
    return tar({**MODEL, name: content})


HOSTILE = {
    "a name with ..": hostile("models/../../evil.json", b"x"),
    "a name with .. outside of the model": hostile("../evil.json", b"x"),
    "an absolute name with ..": hostile("/../evil.json", b"x"),
    "an absolute name twice": hostile("/models/config.json", b"x"),
    "a link": hostile("models/tokenizer.json", special(tarfile.SYMTYPE, "/etc/passwd")),
    "a hard link": hostile("models/tokenizer.json", special(tarfile.LNKTYPE, "models/config.json")),
    "a device": hostile("models/tokenizer.json", special(tarfile.CHRTYPE)),
    "a pipe": hostile("models/tokenizer.json", special(tarfile.FIFOTYPE)),
    "a name twice": hostile("models//config.json", b"[]"),
    "a link for the folder, and no model": tar({"models": special(tarfile.SYMTYPE, "/srv"), "srv/config.json": b"{}"}),
    "no model below models/": tar({"config.json": b"{}", "model.safetensors": b"x"}),
    "pickled weights": tar({"models/config.json": b"{}", "models/pytorch_model.bin": b"x"}),
    "no archive": b"x" * 3000,
}


@pytest.mark.parametrize("form", ["tar", "gzip"])
@pytest.mark.parametrize("layer", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_archive_is_refused_and_writes_nothing_elsewhere(volume, layer, form):
    volume.take(BASE, form)
    with pytest.raises((Refused, Mismatch)):
        _ = volume.take(layer, form) and volume.tree()
    assert volume.outside() == []


def test_a_link_through_which_a_later_layer_would_leave_is_never_made(volume):
    volume.take(tar({"models/sub": special(tarfile.SYMTYPE, str(volume.root))}))
    volume.take(tar({**MODEL, "models/sub/evil.json": b"x"}))
    assert sorted(volume.tree()) == ["config.json", "model.safetensors"]
    assert volume.outside() == []


KINDS = st.sampled_from(
    [b"x", b"{}", b"yy", b"z" * 600, special(tarfile.SYMTYPE, "../.."), special(tarfile.LNKTYPE, "/etc"), special(tarfile.DIRTYPE)]
)
GOOD = ("models/config.json", "models/model.safetensors", "./models/a.json", "models//sub/config.json", "models", "models/a.json/b.json")
WHITEOUTS = (".wh.models", "models/.wh.config.json", "models/.wh..wh..opq", "models/.wh.", ".wh...")
BAD = ("../models/a.json", "models/../x.json", "/../models/a.json", "models/..", "models/a\\b.json", "models/a\0b.json")
NAMES = st.sampled_from([*GOOD * 6, *WHITEOUTS * 2, *BAD])


@pytest.mark.deep
@given(st.lists(st.dictionaries(NAMES, KINDS, max_size=6), max_size=3), st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@settings(max_examples=40)
def test_whatever_layers_hold_only_a_model_comes_out_and_nothing_elsewhere(tmp_path_factory, layers, form):
    volume = Volume(tmp_path_factory.mktemp("volume"))
    try:
        for layer in layers:
            volume.take(tar(layer, form), "tar")
        assert {"config.json", "model.safetensors"} <= set(volume.tree())
    except FetchError:
        pass
    assert volume.outside() == []
    assert not [path for path in volume.staging.rglob("*") if path.is_symlink()]


BESIDE = st.sampled_from(
    ["bin/sh", "models/a.json", "./models/b.json", "/models/c.json", "models/sub/config.json", "models/.wh.a.json", "/nix/x", ".wh.models"]
)
HARMLESS = st.dictionaries(BESIDE, st.sampled_from([b"x", b"{}"]), max_size=5)


@pytest.mark.deep
@given(st.lists(HARMLESS, max_size=2), HARMLESS, st.sampled_from(["tar", "gzip"]))
@settings(max_examples=30)
def test_whatever_harmless_lies_below_and_beside_it_a_model_comes_out(tmp_path_factory, below, beside, form):
    volume = Volume(tmp_path_factory.mktemp("volume"))
    for layer in [*below, {**beside, **MODEL}]:
        volume.take(tar(layer or {"etc": special(tarfile.DIRTYPE)}), form)
    tree = volume.tree()
    assert {f"models/{name}": tree[name] for name in ("config.json", "model.safetensors")} == MODEL
    assert set(tree) <= {"config.json", "model.safetensors", "a.json", "b.json", "c.json"}
    assert {name.rpartition("/")[2] for name in beside if name.endswith(("a.json", "b.json", "c.json")) and ".wh." not in name} <= set(tree)


def test_a_folder_that_a_later_layer_replaces_by_a_link_is_gone(volume):
    volume.take(tar({f"models/llama/{name.rpartition('/')[2]}": b"old" for name in MODEL}))
    volume.take(
        tar({"models/llama": special(tarfile.SYMTYPE, "v2"), **{f"models/v2/sub/{n.rpartition('/')[2]}": b for n, b in MODEL.items()}})
    )
    assert volume.tree() == {name.rpartition("/")[2]: body for name, body in MODEL.items()}


@pytest.mark.parametrize(("count", "size", "why"), [(1, 6_000_000, "announces a file of 5.7 MiB"), (20, 300_000, "made to fill the disk")])
def test_a_bomb_is_refused_before_it_fills_the_disk(volume, monkeypatch, count, size, why):
    monkeypatch.setattr(archive, "_SMALL", 1_000_000)
    with pytest.raises(Refused, match=why):
        volume.take(tar({f"models/{n}.json": bytes(size) for n in range(count)}))
    assert volume.grown < 4_000_000


@pytest.mark.parametrize(
    ("limits", "why"),
    [(Limits(max_files=1), "more than 1 files"), (Limits(max_bytes=600), r"unpacks to more than 600 B, which is the most|announces")],
)
def test_the_caps_of_a_fetch_hold_for_what_comes_out(volume, limits, why):
    with pytest.raises(Refused, match=why):
        volume.take(tar(MODEL), limits=limits)


def test_hidden_paths_count_as_files(volume):
    with pytest.raises(Refused, match="more than 5 files"):
        volume.take(tar({f"models/.wh.{n}": b"" for n in range(6)}), limits=Limits(max_files=5))


@pytest.mark.parametrize("cut", [lambda body: body[:-9], lambda body: body[: len(body) // 2], lambda body: body + b"more", lambda _: b""])
def test_a_gzip_that_is_not_whole_is_refused(volume, cut):
    with pytest.raises(Mismatch, match="gzip"):
        volume.take(b"", packed=cut(gzip.compress(tar(MODEL))))


def test_a_promise_of_the_config_is_kept_or_the_layer_refused(volume):
    volume.take(tar(MODEL), promised=digest(tar(MODEL)))
    with pytest.raises(Mismatch, match="promised is"):
        volume.take(tar(MODEL), promised=digest(b"another"))


class Registry:
    """Has one layer, in small chunks."""

    def __init__(self, body):
        self.body = body
        self.file = RemoteFile(
            ".layer-00000", len(body), digest(body), "", Checksum("sha256", digest(body)[7:]), Layer("tar", within="models")
        )

    async def read(self, file, offset):
        for start in range(offset, file.size, 2**20):
            yield self.body[start : start + 2**20]

    def pull(self, volume, guard=lambda: None):
        self.moved = []
        return pull(Work(self, volume.staging, QUICK, self.moved.append, guard, volume.grew), self.file)


LAYER = tar({"models/config.json": b"{}", **{f"models/model-{n}.safetensors": bytes(900_000) for n in range(5)}})


def failing(monkeypatch, *calls):
    """fsync, which fails in these calls."""
    count, real = iter(range(60)), os.fsync

    def fsync(handle):
        number = next(count, None)
        assert number is not None, "no end"
        if number in calls:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)


async def test_a_disk_that_fails_for_a_moment_costs_a_layer_its_beginning_and_no_more(volume, monkeypatch):
    failing(monkeypatch, 2, 5)
    registry = Registry(LAYER)
    assert (await registry.pull(volume), sum(registry.moved)) == (digest(LAYER)[7:], len(LAYER))
    assert Unpacking(volume.staging, registry.file, Limits(), volume.grew).begin() == len(LAYER), "whole: nothing is fetched again"
    next(volume.staging.glob("*/0")).unlink()
    assert Unpacking(volume.staging, registry.file, Limits(), volume.grew).begin() == 0


async def test_a_disk_that_always_fails_at_one_place_is_named_and_no_fault_of_the_model(volume, monkeypatch):
    failing(monkeypatch, *range(4, 60, 5))
    with pytest.raises(Unreachable, match="Input/output error"):
        await Registry(LAYER).pull(volume)


def test_a_layer_that_is_torn_takes_no_more(volume, monkeypatch):
    failing(monkeypatch, 0)
    sink = Unpacking(volume.staging, Registry(LAYER).file, Limits(), volume.grew)
    sink.begin()
    with pytest.raises(Unreachable, match="Input/output error"):
        sink.write(LAYER)
    with pytest.raises(RuntimeError):
        sink.write(LAYER)
    sink.drop()
    assert (sink.torn, sink.begin(), sink.torn, list(volume.staging.glob("*/*"))) == (True, 0, False, [])


@pytest.mark.parametrize("kind", ["record", "file", "raw"])
def test_a_layer_whose_files_are_gone_is_never_left_out_of_a_model(volume, kind):
    volume.take(tar(MODEL))
    volume.take(tar({"models/model-2.safetensors": b"y"}))
    if kind == "raw":
        volume.files.append(RemoteFile(".layer-00002", 5, digest(b"gone!"), layer=Layer("raw", "models/chat_template.jinja")))
    else:
        next(volume.staging.glob(f".layer-00001-*/{'layer.json' if kind == 'record' else '0'}")).unlink()
    with pytest.raises(Unreachable, match="not on the volume any more"):
        volume.tree()


@pytest.mark.parametrize("call", [0, 6])
async def test_a_holder_that_lost_its_lock_neither_keeps_a_layer_nor_removes_its_successors(volume, call):
    registry, calls = Registry(LAYER), iter(range(100))
    successor = Unpacking(volume.staging, registry.file, Limits(), volume.grew)

    def guard():
        if next(calls) == call:
            successor.begin()
            raise LockLost("another")

    with closing(successor), pytest.raises(LockLost):
        await registry.pull(volume, guard)
    assert (len(list(volume.staging.iterdir())), list(volume.staging.glob("*/layer.json"))) == (1, [])


def test_records_of_two_holders_never_name_each_others_files(volume):
    body = tar(MODEL)
    file = RemoteFile(".layer-00000", len(body), digest(body), "", Checksum("sha256", digest(body)[7:]), Layer("tar", within="models"))
    old = Unpacking(volume.staging, file, Limits(), volume.grew)
    with closing(old):
        old.begin()
        old.write(body)
        volume.take(body, "tar")  # which removes what the old one wrote
        with pytest.raises(Unreachable):
            old.finish()
    assert sorted(volume.tree()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_assembly_that_was_killed_goes_on_without_the_layers(volume, monkeypatch, done):
    volume.take(tar(MODEL))
    volume.take(tar({"models/model.safetensors": b"y" * 700, "models/.wh.a": b""}))
    count, real = iter(range(9)), Path.rename

    def rename(path, target):
        assert next(count) < done
        return real(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr("shutil.rmtree", lambda _: 1 / 0)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        volume.tree()
    monkeypatch.undo()
    sizes = assembled(volume.staging)
    assert sizes == assembled(volume.staging) == {path.name: (path.stat().st_size, digest(path.read_bytes())[7:]) for path in volume.made()}
    assert sizes["model.safetensors"] == (700, digest(b"y" * 700)[7:])
    (volume.staging / TREE / "config.json").unlink()
    assert (assembled(volume.staging), volume.made()) == ({}, [])
