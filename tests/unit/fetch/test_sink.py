"""One file on its way to the disk: what an earlier process left is continued, and hashed as what comes is."""

import hashlib

import pytest
from pagoda_fetch.core.errors import Mismatch
from pagoda_fetch.core.listing import Checksum, RemoteFile
from pagoda_fetch.volume.sink import Sink

BODY = bytes(range(256)) * 40
SHA256 = hashlib.sha256(BODY).hexdigest()
GIT = hashlib.sha1(f"blob {len(BODY)}\0".encode() + BODY, usedforsecurity=False).hexdigest()
PROMISES = pytest.mark.parametrize("promise", [Checksum("sha256", SHA256), Checksum("git", GIT)], ids=["sha256", "git"])


def sink(folder, promise=None):
    return Sink(folder, RemoteFile("a.json", len(BODY), "a.json", "", promise))


@PROMISES
def test_what_was_kept_counts_in_the_digest(tmp_path, promise):
    (tmp_path / "a.json.partial").write_bytes(BODY[:1000])
    resumed = sink(tmp_path, promise)
    assert resumed.begin() == 1000
    resumed.write(BODY[1000:])
    assert resumed.finish() == SHA256
    assert (tmp_path / "a.json").read_bytes() == BODY


@PROMISES
@pytest.mark.parametrize("kept", [1000, len(BODY)], ids=["a part", "all of it"])
def test_a_resumed_file_with_a_wrong_kept_byte_is_refused_and_removed(tmp_path, promise, kept):
    (tmp_path / "a.json.partial").write_bytes(b"!" + BODY[1:kept])
    resumed = sink(tmp_path, promise)
    assert resumed.begin() == kept
    if kept < len(BODY):
        resumed.write(BODY[kept:])
    with pytest.raises(Mismatch, match=r"a\.json: "):
        resumed.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.json", "a.json.partial"], ids=["finished", "not yet renamed"])
def test_a_file_of_which_all_bytes_are_there_is_whole_without_another_byte(tmp_path, name):
    (tmp_path / name).write_bytes(BODY)
    resumed = sink(tmp_path)
    assert (resumed.begin(), resumed.whole) == (len(BODY), True)
    assert resumed.finish() == SHA256


def test_a_file_that_is_longer_than_listed_begins_anew(tmp_path):
    (tmp_path / "a.json.partial").write_bytes(BODY + b"x")
    resumed = sink(tmp_path)
    assert (resumed.begin(), resumed.whole) == (0, False)
    resumed.write(BODY)
    assert resumed.finish() == SHA256
