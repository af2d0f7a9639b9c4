"""Names in image archives, and the archive made here."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from pagoda_devcluster.cluster.errors import UsageError
from pagoda_devcluster.machine import images
from pagoda_devcluster.render.node_config import PAUSE_IMAGE


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("team/app", "docker.io/team/app:latest"),
        ("localhost/app:1", "localhost/app:1"),
        ("registry.local:5000/app", "registry.local:5000/app:latest"),
        ("host.example/a/b:2", "host.example/a/b:2"),
        ("a/b@sha256:00", "docker.io/a/b@sha256:00"),
    ],
)
def test_a_short_name_means_what_a_kubelet_makes_of_it(name, asked):
    assert images.qualified(name) == asked


def write(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def index(*annotations: dict[str, str]) -> bytes:
    return json.dumps({"manifests": [{"annotations": entry} for entry in annotations]}).encode()


def test_an_oci_archive_may_hold_several_named_images(tmp_path: Path):
    named = index({"io.containerd.image.name": "a/b:1"}, {"org.opencontainers.image.ref.name": "c/d:2"})
    assert images.names_in(write(tmp_path / "x.tar", {"./index.json": named})) == ["a/b:1", "c/d:2"]


def test_a_docker_archive_with_an_index_beside_is_read_as_docker(tmp_path: Path):
    manifest = json.dumps([{"RepoTags": ["a:1", "b:2"]}, {"RepoTags": None}]).encode()
    file = write(tmp_path / "x.tar", {"manifest.json": manifest, "index.json": index({"org.opencontainers.image.ref.name": "1"})})
    assert images.names_in(file) == ["a:1", "b:2"]


@pytest.mark.parametrize("files", [{"index.json": index({"org.opencontainers.image.ref.name": "latest"})}, {"other": b""}])
def test_an_archive_without_a_name_is_refused_with_the_way_to_name_it(tmp_path: Path, files):
    with pytest.raises(UsageError, match="oci-archive:FILE:NAME:TAG"):
        images.names_in(write(tmp_path / "x.tar", files))


@pytest.mark.parametrize("content", [b"", b"not a tar", None])
def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path, content):
    if content is not None:
        (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(UsageError, match="not a readable image archive"):
        images.names_in(tmp_path / "x.tar")


def test_the_pause_archive_is_complete_and_the_same_each_time(tmp_path: Path):
    (tmp_path / "pause").write_bytes(b"binary")
    for target in ("a.tar", "b.tar"):
        images.write_pause_archive(tmp_path / "pause", "x86_64", tmp_path / target)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert images.names_in(tmp_path / "a.tar") == [PAUSE_IMAGE]
    with tarfile.open(tmp_path / "a.tar") as archive:
        config = json.loads(archive.extractfile("config.json").read())
    assert config["architecture"] == "amd64"
