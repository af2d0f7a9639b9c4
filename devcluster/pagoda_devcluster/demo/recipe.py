"""What each image is made of, and the tag that follows from it. Pure but for reading the files it hashes.

An image is a base (a small Debian with Python 3.11), `deps` (the lock's packages) and `app` (our wheel), stacked in that order so that
a change of code rebuilds megabytes. The thin daemon image has empty `deps`: its 5.3 GB of CUDA torch would cost minutes through build
and import, so the demo mounts them read-only into the pod instead, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SUITE = "bookworm"
BASE_PACKAGES = ("python3-minimal", "libpython3.11-stdlib", "ca-certificates", "tzdata")
COMPILER_PACKAGES = ("gcc", "libc6-dev", "libpython3.11-dev")
"""Triton's wheel has its calls of the CUDA driver as C: it compiles them against Python when it first sees a GPU."""

REGISTRY = "localhost/pagoda"
SOURCES = ("contracts", "kube", "sizing", "placement", "kernels", "daemon", "operator", "gateway", "fetch")
DEPS_MOUNT = "/opt/pagoda/deps"
# How packages are laid out, which no lock says: their bytecode lies beside them.
INSTALLED = b"with bytecode"


@dataclass(frozen=True)
class Component:
    """One image: its name, the folder of its Dockerfile, the lock of its dependencies, whether those are inside, which of our folders it
    imports, and the Debian packages that it needs beside the base's."""

    name: str
    folder: str
    lock: str
    with_deps: bool = True
    below: tuple[str, ...] = ("contracts",)
    packages: tuple[str, ...] = ()

    @property
    def debian(self) -> tuple[str, ...]:
        """What its base has."""
        return (*BASE_PACKAGES, *self.packages)

    @property
    def folders(self) -> tuple[str, ...]:
        """Whose code is inside: its own and what it imports."""
        return (*self.below, self.folder)


OPERATOR = Component("operator", "operator", "requirements/operator.txt", below=("contracts", "kube", "sizing", "placement"))
GATEWAY = Component("gateway", "gateway", "requirements/gateway.txt", below=("contracts", "kube"))
FETCH = Component("fetch", "fetch", "requirements/fetch.txt")
_ENGINE = ("contracts", "sizing", "kernels")
DAEMON = Component("daemon", "daemon", "requirements/daemon.txt", below=_ENGINE, packages=COMPILER_PACKAGES)
DAEMON_THIN = Component("daemon-thin", "daemon", "requirements/daemon.txt", with_deps=False, below=_ENGINE)


def digest(parts: Iterable[bytes]) -> str:
    """Twelve hex digits over length-prefixed parts."""
    state = hashlib.sha256()
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    return state.hexdigest()[:12]


def base_image(component: Component) -> str:
    """The full name of a component's base; the tag changes with the suite or the packages."""
    return f"{REGISTRY}/base:{digest([SUITE.encode(), *(name.encode() for name in component.debian)])}"


def source_files(root: Path, folders: tuple[str, ...]) -> list[Path]:
    """The Python and C++ sources of these components and what says how they are packed, in a stable order."""
    suffixes = (".py", ".pyi", ".cpp", ".h")
    found = [path for folder in folders for path in (root / folder).rglob("*") if path.suffix in suffixes]
    return sorted([*found, root / "pyproject.toml", root / "hatch_build.py"])


def app_hash(root: Path, folders: tuple[str, ...] = SOURCES) -> str:
    """Hash of these components' sources, names included; of the whole wheel's by default."""
    files = source_files(root, folders)
    return digest([INSTALLED, *(part for path in files for part in (str(path.relative_to(root)).encode(), path.read_bytes()))])


def app_parts(component: Component) -> tuple[str, ...]:
    """What of the unpacked wheel goes into a component's image: glob patterns. No image carries another component's code."""
    return (*(f"pagoda_{folder}" for folder in component.folders), "pagoda-*.dist-info")


def deps_hash(root: Path, component: Component) -> str:
    """Hash of a component's lock."""
    return digest([INSTALLED, (root / component.lock).read_bytes()])


def image(root: Path, component: Component) -> str:
    """The component's full image name, tagged by its content."""
    inside = deps_hash(root, component) if component.with_deps else "none"
    dockerfile = (root / component.folder / "Dockerfile").read_bytes()
    app = app_hash(root, component.folders)
    tag = digest([base_image(component).encode(), inside.encode(), app.encode(), dockerfile])
    return f"{REGISTRY}/{component.name}:{tag}"


def chart_values(images: dict[Component, str]) -> dict[str, object]:
    """Values of the chart for a dev cluster: these images, and the daemon's dependencies mounted from a claim."""
    mount = {"name": "deps", "mountPath": DEPS_MOUNT, "readOnly": True}
    volume = {"name": "deps", "persistentVolumeClaim": {"claimName": DEPS_CLAIM, "readOnly": True}}
    return {
        "operator": {"image": images[OPERATOR]},
        "gateway": {"image": images[GATEWAY], "drainTimeout": "30s"},
        "defaultProfile": {
            "images": {"daemon": images[DAEMON_THIN], "fetch": images[FETCH]},
            "podTemplate": {"spec": {"containers": [{"name": "daemon", "volumeMounts": [mount]}], "volumes": [volume]}},
        },
    }


DEPS_CLAIM = "pagoda-deps"
