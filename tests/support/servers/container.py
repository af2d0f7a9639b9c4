"""Runs an OCI archive's image by runc as a strict pod would: its own user, a read-only root, no capability, nothing writable but what
is mounted so. The host's network, so that a test may call. Needs root."""

from __future__ import annotations

import json
import subprocess
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Image:
    """What an archive says of its image, and where its layers were laid."""

    config: dict[str, Any]
    rootfs: Path


@dataclass(frozen=True)
class Container:
    """One that runs. `process` is runc's own, which ends as the container's does."""

    name: str
    state: Path
    process: subprocess.Popen[str]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A command inside, as the image's user."""
        return subprocess.run(["runc", "--root", str(self.state), "exec", self.name, *argv], capture_output=True, text=True, check=False)

    def signal(self, name: str) -> None:
        subprocess.run(["runc", "--root", str(self.state), "kill", self.name, name], check=True)


def unpack(archive: Path, rootfs: Path) -> Image:
    """Lays the layers over each other. Ours only add files."""
    rootfs.mkdir()
    with tarfile.open(archive) as tar:

        def blob(digest: str) -> Any:
            return tar.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")

        index = tar.extractfile("index.json")
        assert index is not None
        manifest = json.load(blob(json.load(index)["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"]), mode="r|*") as files:
                files.extractall(rootfs, filter="fully_trusted")  # noqa: S202  built a moment ago, by us
        return Image(json.load(blob(manifest["config"]["digest"]))["config"], rootfs)


@contextmanager
def running(image: Image, folder: Path, arguments: Sequence[str], binds: dict[str, Path], scratch: Sequence[str]) -> Iterator[Container]:
    """`binds`: read-only mounts by their place inside; `scratch`: empty writable ones. Killed at the end where it runs still."""
    subprocess.run(["runc", "spec", "--bundle", str(folder)], check=True)
    document = folder / "config.json"
    document.write_text(json.dumps(strict(json.loads(document.read_text()), image, arguments, binds, scratch)))
    name, state = f"pagoda-{uuid.uuid4().hex[:8]}", folder / "state"
    runc = ["runc", "--root", str(state)]
    process = subprocess.Popen([*runc, "run", "--bundle", str(folder), name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield Container(name, state, process)
    finally:
        if process.poll() is None:
            subprocess.run([*runc, "kill", name, "KILL"], check=False)
        process.wait(300)
        if process.stdout is not None:
            process.stdout.close()


def strict(spec: dict[str, Any], image: Image, arguments: Sequence[str], binds: dict[str, Path], scratch: Sequence[str]) -> dict[str, Any]:
    """runc's own draft, made as strict as Pod Security `restricted` with a read-only root."""
    user, group = map(int, image.config["User"].split(":"))
    spec["process"] |= {
        "terminal": False,
        "user": {"uid": user, "gid": group},
        "env": image.config["Env"],
        "args": [*image.config["Entrypoint"], *arguments],
        "capabilities": {},
        "noNewPrivileges": True,
    }
    spec["root"] = {"path": str(image.rootfs), "readonly": True}
    spec["mounts"] += [_mount(place, "tmpfs", "tmpfs", "nosuid", "nodev", "mode=1777") for place in scratch]
    spec["mounts"] += [_mount(place, "bind", str(source), "bind", "ro") for place, source in binds.items()]
    spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] not in ("network", "cgroup")]
    return spec


def _mount(place: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": place, "type": kind, "source": source, "options": list(options)}
