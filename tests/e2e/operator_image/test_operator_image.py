"""The operator's image, built by buildah and run by runc: no rights, a read-only root, no capability; without its cluster it says so."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from pagoda_devcluster.demo import build, recipe
from support.servers.container import Container, Image, running, unpack

ROOT = Path(__file__).parents[3]
lacking = [tool for tool in ("buildah", "runc", "mmdebstrap") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: runc makes namespaces"),
    pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}"),
]
# Nobody listens there: what the operator does without an API server is the image's to show, what it does with one the other tests'.
NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "none"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Image:
    builder = build.ImageBuilder(ROOT, Path(os.environ.get("PAGODA_CACHE") or Path.home() / ".cache/pagoda"), print)
    _, archive = build.archive(builder, recipe.OPERATOR)
    return unpack(archive, tmp_path_factory.mktemp("image") / "rootfs")


@pytest.fixture(scope="module")
def operator(image, tmp_path_factory):
    """As the chart runs it: two read-only mounts, /tmp to write, nothing else."""
    place = tmp_path_factory.mktemp("config")
    place.chmod(0o755)
    (place / "kubeconfig").write_text(json.dumps(NOWHERE))
    (image.rootfs / "etc/pagoda").mkdir(parents=True, exist_ok=True)
    arguments = ["--kubeconfig", "/etc/pagoda/kubeconfig", "--probes-port", "0", "--metrics-port", "0"]
    bundle = tmp_path_factory.mktemp("bundle")
    with running(image, bundle, arguments, {"/etc/pagoda": place}, ["/tmp"]) as started:  # noqa: S108  inside the container
        yield started


def said(operator: Container, word: str) -> str:
    """Its lines up to the one with this word."""
    lines = []
    assert operator.process.stdout is not None
    for line in operator.process.stdout:
        lines.append(line)
        if word in line:
            return line
    raise AssertionError(f"ended without {word!r}: {''.join(lines)}")


def test_the_image_names_a_user_without_rights(image):
    assert image.config["User"] == "65532:65532"
    assert image.config["Labels"]["org.opencontainers.image.title"] == "pagoda-operator"


def test_without_an_api_server_it_waits_and_says_so(operator):
    line = json.loads(said(operator, "api_server_silent"))
    assert "ConnectionRefusedError" in line["error"]
    assert operator.process.poll() is None


def test_it_may_write_nowhere_but_in_its_scratch(operator):
    for place in ("/", "/opt/pagoda/app", "/etc/pagoda", "/usr/lib"):
        tried = operator.run("python3.11", "-c", f"open({place!r} + '/mark', 'w')")
        assert tried.returncode == 1, place
        assert "Read-only file system" in tried.stderr or "Permission denied" in tried.stderr, tried.stderr
    assert operator.run("python3.11", "-c", "open('/tmp/mark', 'w'); import os; assert os.getuid() == 65532").returncode == 0
    status = operator.run("cat", "/proc/1/status").stdout
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_a_term_ends_it(operator):
    operator.signal("TERM")
    assert operator.process.wait(300) == 0
