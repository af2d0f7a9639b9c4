"""Archives told while they come: as tarfile reads them, however they are cut into pieces; hostile ones are errors, no more."""

import gzip
import io
import tarfile
import zlib
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pagoda_fetch.core import archive as archives
from pagoda_fetch.core import tar as tars
from pagoda_fetch.core.archive import Archive, Gunzip
from pagoda_fetch.core.errors import FetchError, Mismatch, Refused
from pagoda_fetch.core.listing import Layer, RemoteFile
from pagoda_fetch.core.tar import BLOCK, Tar
from support.clients.archives import special, tar

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
NAMES = st.lists(st.sampled_from(["a", "é", "日本", " ", "..", "n" * 40, "m" * 120]), min_size=1, max_size=8).map("/".join)


class Reader:
    """Wants all files."""

    def __init__(self):
        self.found = []

    def begin(self, entry):
        self.found.append((entry.name, entry.kind, bytearray()))
        return True

    def data(self, data):
        self.found[-1][2].extend(data)

    def end(self):
        self.ended = self.found[-1][0]


def read(body, cuts=()):
    reader = Reader()
    told, edges = Tar("layer x", reader), [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for start, end in pairwise(edges):
        told.feed(body[start:end])
    told.finish()
    return [(name.rstrip("/"), kind, bytes(data)) for name, kind, data in reader.found]


def kind_of(info):
    return "folder" if info.isdir() else "file" if info.isreg() else "other"


def as_tarfile_reads(body):
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        return [(info.name, kind_of(info), archive.extractfile(info).read() if info.isreg() else b"") for info in archive]


ENTRIES = st.dictionaries(
    NAMES, st.one_of(st.binary(max_size=2000), st.sampled_from([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE])), min_size=1, max_size=6
)


@pytest.mark.deep
@settings(max_examples=60)
@given(ENTRIES, st.sampled_from(FORMATS[1:]), st.lists(st.integers(0, 100_000), max_size=6))
@example({f"{'a' * 99}/{'b' * 40}/config.json": b"{}"}, tarfile.USTAR_FORMAT, [3, 511, 513])
def test_an_archive_is_read_as_tarfile_reads_it_however_it_comes(entries, form, cuts):
    body = tar({name: special(content, "t" * 150) if content in (b"2", b"3", b"5") else content for name, content in entries.items()}, form)
    assert read(body, cuts) == as_tarfile_reads(body)


@pytest.mark.deep
@settings(max_examples=150)
@given(st.sampled_from(FORMATS), st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=8))
def test_an_archive_with_wrong_bytes_is_an_error_or_another_archive(form, changes):
    long = {} if form == tarfile.USTAR_FORMAT else {"models/" + "n" * 200: b"y"}
    body = bytearray(tar({"models/config.json": b"{}", **long}, form))
    for at, value in changes:
        body[at % len(body)] = value
    with suppress(FetchError):
        assert all(kind in ("file", "folder", "other") for _, kind, _ in read(bytes(body)))


@given(st.binary(max_size=60))
@example(b"5 a=\n" * 10)
@example(b"9 path=x\n")
@example(b"99 path=x\n")
@example(b"0 a=b\n")
@example(b"-1 a=b\n")
def test_records_of_an_extended_header_are_words_or_nothing(body):
    words = tars._records(body)
    assert words is None or all(isinstance(word, str) for word in words)


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK + 1, 2 * BLOCK + 1])
def test_a_cut_archive_is_not_whole(length):
    with pytest.raises(Mismatch, match="in the middle of an entry"):
        read(tar({"a": b"x" * 1000})[:length])
    assert read(tar({"a": b"x" * 512})[: 2 * BLOCK]) == [("a", "file", b"x" * 512)]


def sparse():
    info = special(tarfile.GNUTYPE_SPARSE)
    return tar({"models/x.safetensors": info}, tarfile.GNU_FORMAT)


def extended(**words):
    info = tarfile.TarInfo("a")
    info.pax_headers = words
    return info.tobuf(tarfile.PAX_FORMAT)


HOSTILE = {
    "many entries": (tar({str(n): b"" for n in range(40)}), "more than 30 entries"),
    "a long extended header": (extended(comment="x" * 3000), "extended header of"),
    "a long name": (tar({"n" * 500: b""}), "a name of 500 characters"),
    "a sparse file": (sparse(), "sparse file"),
    "a sparse file of pax": (extended(**{"GNU.sparse.major": "1"}), "sparse file"),
    "a size that is none": (extended(size="-5"), "a size of '-5'"),
    "a size of a hundred digits": (extended(size="9" * 100), "a size of '999"),
    "a size below zero": (tar({"a": b""})[:124] + b"\xff" * 12 + tar({"a": b""})[136:], "a header is not one|a size of -"),
    "no archive": (b"x" * 2000, "a header is not one"),
    "nothing": (b"", "in the middle"),
}


@pytest.mark.parametrize(("body", "why"), HOSTILE.values(), ids=HOSTILE)
def test_what_goes_beyond_the_bounds_is_refused(body, why, monkeypatch):
    for word, value in (("_MAX_ENTRIES", 30), ("_MAX_EXTENDED", 2000), ("_MAX_NAME", 400)):
        monkeypatch.setattr(tars, word, value)
    with pytest.raises((Refused, Mismatch), match=why):
        read(body)


@pytest.mark.deep
@settings(max_examples=60)
@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=3), st.lists(st.integers(0, 10_000), max_size=5), st.integers(0, 3))
def test_gzip_comes_out_whole_however_it_comes_and_of_several_members(bodies, cuts, zeros):
    packed = b"".join(map(gzip.compress, bodies)) + bytes(zeros)
    gunzip, edges = Gunzip("layer x"), [0, *sorted(cut % (len(packed) + 1) for cut in cuts), len(packed)]
    out = b"".join(piece for start, end in pairwise(edges) for piece in gunzip.feed(packed[start:end]))
    assert (out, gunzip.whole) == (b"".join(bodies), True)


def test_very_many_members_of_gzip_are_not_copied_again_and_again(monkeypatch):
    real, given = zlib.decompressobj, []

    class Member:
        def __init__(self, *form):
            self._real = real(*form)

        def __getattr__(self, name):
            return getattr(self._real, name)

        def decompress(self, data, most):
            given.append(len(data))
            return self._real.decompress(data, most)

    monkeypatch.setattr("zlib.decompressobj", Member)
    packed = gzip.compress(b"") * 3000
    assert (b"".join(Gunzip("x").feed(packed)), sum(given) < 400 * len(packed)) == (b"", True)


def test_what_gzip_makes_small_comes_out_in_pieces_and_not_without_measure(monkeypatch):
    monkeypatch.setattr(archives, "_SMALL", 2_000_000)
    packed = gzip.compress(tar({"models/model.safetensors": bytes(8_000_000)}))
    assert max(map(len, Gunzip("x").feed(packed))) <= 2**20
    file = RemoteFile("x", len(packed), "sha256:1", "", None, Layer("gzip"))
    with pytest.raises(Refused, match="made to fill the disk"):
        Archive(file, Layer("gzip"), Reader(), 2**40).feed(packed)
