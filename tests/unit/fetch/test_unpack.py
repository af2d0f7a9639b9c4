"""A layer on its way to the disk, without a network: what is taken of it, what is refused, and that nothing is ever written elsewhere."""

import gzip
import hashlib
import tarfile
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_fetch.core import archive
from pagoda_fetch.core.errors import FetchError, Mismatch, Refused
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Checksum, Layer, Listing, RemoteFile
from pagoda_fetch.volume.unpack import Unpacking, assemble
from support.clients.archives import digest, special, tar

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
        found = {path.name: path.read_bytes() for path in self.staging.iterdir()}
        assert {name: (len(body), hashlib.sha256(body).hexdigest()) for name, body in found.items()} == sizes
        return found

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
    "an absolute name": hostile("/etc/evil.json", b"x"),
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
BAD = ("../models/a.json", "models/../x.json", "/models/a.json", "models/..", "models/a\\b.json", "models/a\0b.json")
NAMES = st.sampled_from([*GOOD * 6, *WHITEOUTS * 2, *BAD])


@pytest.mark.deep
@given(st.lists(st.dictionaries(NAMES, KINDS, max_size=6), max_size=3), st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
@settings(max_examples=60)
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


@pytest.mark.parametrize(("count", "size", "why"), [(1, 6_000_000, "announces a file of 5.7 MiB"), (20, 300_000, "made to fill the disk")])
def test_a_bomb_is_refused_before_it_fills_the_disk(volume, monkeypatch, count, size, why):
    monkeypatch.setattr(archive, "_SMALL", 1_000_000)
    with pytest.raises(Refused, match=why):
        volume.take(tar({f"models/{n}.json": bytes(size) for n in range(count)}))
    assert volume.grown < 4_000_000


@pytest.mark.parametrize(
    ("limits", "why"), [(Limits(max_files=1), "more than 1 files"), (Limits(max_bytes=600), "much more than|announces")]
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


def test_after_a_write_that_failed_only_the_beginning_goes_on(volume, monkeypatch):
    body = tar(MODEL)
    file = RemoteFile(".layer-00000", len(body), digest(body), "", Checksum("sha256", digest(body)[7:]), Layer("tar", within="models"))
    sink = Unpacking(volume.staging, file, Limits(), volume.grew)
    sink.begin()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(FetchError, match="Input/output error"):
        sink.write(body)
    monkeypatch.undo()
    with pytest.raises(Mismatch, match="interrupted in a write"):
        sink.write(body)
    sink.drop()
    assert (sink.begin(), list(volume.staging.glob("*/*"))) == (0, [])
    sink.write(body)
    sink.finish()
    assert Unpacking(volume.staging, file, Limits(), volume.grew).begin() == len(body), "whole: nothing is fetched again"
    next(volume.staging.glob("*/0")).unlink()
    assert Unpacking(volume.staging, file, Limits(), volume.grew).begin() == 0
