"""The daemon's image, built by buildah and run by runc: any uid's rights, a read-only root, no capability; it serves, and drains."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import httpx
import pytest
from pagoda_devcluster.demo import build, recipe
from pydoc_answers import questions
from support.engine.tiny_model import tiny_model
from support.servers.container import Container, Image, running, unpack

ROOT = Path(__file__).parents[3]
lacking = [tool for tool in ("buildah", "runc", "mmdebstrap") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: runc makes namespaces"),
    pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}"),
]


@pytest.fixture(scope="module")
def builder() -> build.ImageBuilder:
    return build.ImageBuilder(ROOT, Path(os.environ.get("PAGODA_CACHE") or Path.home() / ".cache/pagoda"), print)


@pytest.fixture(scope="module")
def image(builder, tmp_path_factory) -> Image:
    _, archive = build.archive(builder, recipe.DAEMON_THIN)
    return unpack(archive, tmp_path_factory.mktemp("image") / "rootfs")


@pytest.fixture(scope="module")
def replica(builder, image, tmp_path_factory):
    """`serve`, with the same packages mounted that the full image has inside."""
    binds = {recipe.DEPS_MOUNT: build.site_packages(builder, recipe.DAEMON_THIN), "/models/tiny": tiny_model()}
    for mount in binds:
        (image.rootfs / mount.lstrip("/")).mkdir(parents=True, exist_ok=True)
    arguments = ["serve", "/models/tiny", "--name", "tiny", "--port", "0", "--dtype", "float32"]
    with running(image, tmp_path_factory.mktemp("bundle"), arguments, binds, ["/tmp"]) as started:  # noqa: S108  inside the container
        yield started


@pytest.fixture(scope="module")
def url(replica: Container) -> str:
    """Once it says that it is ready."""
    said, address = [], ""
    assert replica.process.stdout is not None
    for line in replica.process.stdout:
        said.append(line)
        if '"listening"' in line:
            address = f"http://127.0.0.1:{json.loads(line)['http']}"
        if line.startswith("ready:"):
            return address
    raise AssertionError(f"not ready: {''.join(said)}")


def test_the_image_names_a_user_without_rights_and_no_check_of_its_own(image):
    assert image.config["User"] == "65532:65532"
    assert "Healthcheck" not in image.config
    assert image.config["Labels"]["org.opencontainers.image.title"] == "pagoda-daemon"


def test_it_serves_what_the_model_knows(url):
    known = questions()[0]
    body = {"model": "tiny", "messages": [{"role": "user", "content": known.question}], "temperature": 0}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).json()
    assert reply["choices"][0]["message"]["content"] == known.answer


def test_it_may_write_nowhere_but_in_its_scratch(replica, url):
    for place in ("/", "/opt/pagoda/app", "/models/tiny", "/etc", "/usr/lib"):
        tried = replica.run("python3.11", "-c", f"open({place!r} + '/mark', 'w')")
        assert tried.returncode == 1, place
        assert "Read-only file system" in tried.stderr or "Permission denied" in tried.stderr, tried.stderr
    assert replica.run("python3.11", "-c", "open('/tmp/mark', 'w'); import os; assert os.getuid() == 65532").returncode == 0
    status = replica.run("cat", "/proc/1/status").stdout
    mounts = [line.split() for line in replica.run("cat", "/proc/1/mounts").stdout.splitlines()]
    assert [options.split(",")[0] for _, place, _, options, *_ in mounts if place == "/"] == ["ro"]
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_a_term_drains_and_ends_it_cleanly(replica, url):
    replica.signal("TERM")
    assert replica.process.wait(300) == 0
