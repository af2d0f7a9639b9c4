"""Images: the pause image made here, the names in an archive, and the import into the node's containerd."""

import io
import json
import re
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

from pagoda_devcluster.cluster.errors import UsageError
from pagoda_devcluster.cluster.spec import ClusterSpec
from pagoda_devcluster.machine import processes
from pagoda_devcluster.render.node_config import CONTAINERD_SOCKET, PAUSE_IMAGE

CTR = ["ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]
NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
GO_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_pause_archive(pause: Path, machine: str, target: Path) -> None:
    """A docker archive with one file in one layer: no registry is needed to start a pod."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        _add(archive, "pause", pause.read_bytes(), 0o755)
    config = {
        "architecture": GO_ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": ["/pause"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{sha256(layer.getvalue()).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]}]
    with tarfile.open(target, mode="w") as archive:
        _add(archive, "layer.tar", layer.getvalue())
        _add(archive, "config.json", json.dumps(config).encode())
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


def names_in(archive: Path) -> list[str]:
    """The names an OCI or docker archive gives its images, as written there."""
    try:
        with tarfile.open(archive) as tar:
            documents = {name: _document(tar, name) for name in ("manifest.json", "index.json")}
    except (OSError, tarfile.TarError, ValueError) as error:
        raise UsageError(f"{archive} is not a readable image archive: {error}") from error
    names = docker_names(documents["manifest.json"] or []) or oci_names(documents["index.json"] or {})
    if not names:
        how = "`buildah push IMAGE oci-archive:FILE:NAME:TAG` or `docker save NAME:TAG`"
        raise UsageError(f"{archive} names no image: write it with {how}")
    return names


def _document(tar: tarfile.TarFile, name: str) -> Any:
    for spelling in (name, f"./{name}"):
        if spelling in tar.getnames() and (handle := tar.extractfile(spelling)):
            return json.loads(handle.read())
    return None


def docker_names(manifest: list[dict[str, Any]]) -> list[str]:
    return [tag for image in manifest for tag in image.get("RepoTags") or []]


def oci_names(index: dict[str, Any]) -> list[str]:
    """A bare tag (`oci-archive:FILE:latest`) is not a name: containerd would make up `import-<date>`."""
    annotations = [manifest.get("annotations", {}) for manifest in index.get("manifests", [])]
    named = [next((entry[key] for key in NAME_ANNOTATIONS if key in entry), "") for entry in annotations]
    return [name for name in named if re.search(r"[:@/]", name)]


def qualified(name: str) -> str:
    """`foo` means `docker.io/library/foo:latest` to every client of a container runtime; containerd itself does not add that."""
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif not (first == "localhost" or "." in first or ":" in first):
        name = f"docker.io/{name}"
    return name if re.search(r":[^/]+$", name) else f"{name}:latest"


def load(spec: ClusterSpec, init: int, archive: Path) -> list[str]:
    """Import through standard input: the node need not see the file. Returns the names the kubelet will ask for."""
    names = names_in(archive)
    processes.inside(spec, init, [*CTR, "images", "import", "-"], stdin=archive)
    have = image_names(spec, init)
    for name in names:
        if name != qualified(name) and name in have:
            # Moved and not copied: a plain name that stayed would later be taken for a newer image than it is.
            processes.inside(spec, init, [*CTR, "images", "tag", "--force", name, qualified(name)])
            processes.inside(spec, init, [*CTR, "images", "remove", name])
        elif qualified(name) not in have:
            raise UsageError(f"containerd did not file {archive} under {qualified(name)}: name the image fully in the archive")
    return [qualified(name) for name in names]


def image_names(spec: ClusterSpec, init: int) -> set[str]:
    return set(processes.inside(spec, init, [*CTR, "images", "list", "--quiet"]).split())
