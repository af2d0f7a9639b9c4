"""Builds the images with buildah, without any registry: the base by mmdebstrap, packages resolved on the host, Dockerfiles that only COPY.

Every product is kept under a name that follows from its content, so a second run finds everything done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pagoda_devcluster.cluster.errors import BuildError, MissingPrerequisiteError
from pagoda_devcluster.demo import recipe
from pagoda_devcluster.demo.recipe import Component

Say = Callable[[str], None]
# This one, and those of the branch one came from.
KEPT = 3


@dataclass(frozen=True)
class ImageBuilder:
    """Where sources are read and products are kept."""

    root: Path
    cache: Path
    say: Say

    @property
    def images(self) -> Path:
        return self.cache / "images"


def run(argv: list[str], **changes: str) -> str:
    """Standard output of a tool; BuildError with the end of its complaint."""
    if shutil.which(argv[0]) is None:
        raise MissingPrerequisiteError(f"{argv[0]} is missing: `pagoda-devcluster up --install` installs it")
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **changes}, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(argv[:3])} … exited {done.returncode}: {(done.stderr or done.stdout).strip()[-800:]}")
    return done.stdout.strip()


@contextmanager
def finished(target: Path) -> Iterator[Path | None]:
    """A scratch path that becomes `target` when the block ends well, or None where `target` is there already. The name says the content, so
    if two processes make it at once, the first one's stays."""
    if target.exists():
        yield None
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        made = Path(scratch) / target.name
        yield made
        try:
            made.rename(target)
        except OSError:
            if not target.exists():
                raise


def site_packages(builder: ImageBuilder, component: Component) -> Path:
    """The lock's packages in a folder, by content; hard links out of uv's cache where that is on the same disk."""
    target = builder.cache / "deps" / f"{component.folder}-{recipe.deps_hash(builder.root, component)}"
    with finished(target) as made:
        if made is not None:
            builder.say(f"installing {component.lock} for the image")
            _uv_install(made, ["--require-hashes", "--requirements", str(builder.root / component.lock)])
            run(["chmod", "-R", "a+rX", str(made)])
    return target


def app_package(builder: ImageBuilder) -> Path:
    """Our own wheel, unpacked."""
    target = builder.cache / "app" / recipe.app_hash(builder.root)
    with finished(target) as made:
        if made is not None:
            builder.say("building our wheel")
            wheels = made.parent / "wheel"
            run(
                [
                    _tool("uv"),
                    "build",
                    "--quiet",
                    "--wheel",
                    "--no-build-isolation",
                    "--python",
                    sys.executable,
                    "-o",
                    str(wheels),
                    str(builder.root),
                ]
            )
            _uv_install(made, ["--no-deps", str(next(wheels.glob("*.whl")))])
            run(["chmod", "-R", "a+rX", str(made)])
    prune(target, "")
    return target


def _uv_install(target: Path, what: list[str]) -> None:
    # Compiled ahead: in a read-only pod nothing can be, and importing torch from source text alone takes seconds longer. The bytecode lies
    # beside its source, whatever the caller's variable says (the Makefile's did), and is valid whatever time a copy of the source has.
    compiled = ["--compile-bytecode"] if sys.version_info[:2] == (3, 11) else []
    places = {"PYTHONPYCACHEPREFIX": "", "PYC_INVALIDATION_MODE": "UNCHECKED_HASH"}
    run([_tool("uv"), "pip", "install", "--quiet", "--python-version", "3.11", "--target", str(target), *compiled, *what], **places)


def _tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def archive(builder: ImageBuilder, component: Component) -> tuple[str, Path]:
    """The component's image by name, and an OCI archive of it, built where it is not there yet."""
    name = recipe.image(builder.root, component)
    target = builder.images / f"{name.replace('/', '_').replace(':', '_')}.tar"
    with finished(target) as made:
        if made is not None:
            base = _base(builder, component)
            builder.say(f"building {name}")
            with tempfile.TemporaryDirectory(dir=builder.images, prefix=".context.") as context:
                _lay_out(builder, component, Path(context))
                _buildah(builder, ["bud", "--quiet", "--build-arg", f"BASE={base}", "-t", name, context])
            _buildah(builder, ["push", "--quiet", name, f"oci-archive:{made}:{name}"])
            _buildah(builder, ["rmi", name])
    prune(target, target.name.rsplit("_", 1)[0])
    return name, target


def prune(current: Path, prefix: str) -> None:
    """Removes all but the newest siblings of `current` that begin like it. Every edit makes a new name: a day's work filled 9 GB,
    since vfs keeps whole copies (hence also the `rmi` after a push: the archive is the product)."""
    alike = [path for path in current.parent.glob(f"{prefix}*") if path != current and not path.name.startswith(".")]
    for old in sorted(alike, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT - 1 :]:
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()


def _lay_out(builder: ImageBuilder, component: Component, context: Path) -> None:
    shutil.copy2(builder.root / component.folder / "Dockerfile", context / "Dockerfile")
    app = app_package(builder)
    for part in (found for pattern in recipe.app_parts(component) for found in app.glob(pattern)):
        shutil.copytree(part, context / "app" / part.name)
    if component.with_deps:
        shutil.copytree(site_packages(builder, component), context / "deps", copy_function=os.link)
    else:
        (context / "deps").mkdir()


def _base(builder: ImageBuilder, component: Component) -> str:
    name = recipe.base_image(component)
    if name in _buildah(builder, ["images", "--format", "{{.Name}}:{{.Tag}}"]).splitlines():
        return name
    builder.say(f"building {name} (a Debian with Python, about 40 s)")
    with tempfile.TemporaryDirectory(dir=builder.images, prefix=".base.") as context:
        packages = ",".join(component.debian)
        run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}", recipe.SUITE, f"{context}/base.tar"])
        (Path(context) / "Dockerfile").write_text("FROM scratch\nADD base.tar /\n")
        _buildah(builder, ["bud", "--quiet", "-t", name, context])
    return name


def _buildah(builder: ImageBuilder, argv: list[str]) -> str:
    # A store of our own: vfs works on every file system, and nothing of ours stays in the machine's.
    builder.images.mkdir(parents=True, exist_ok=True)
    store = ["--root", str(builder.images / "store"), "--runroot", str(builder.images / "run"), "--storage-driver", "vfs"]
    return run(["buildah", *store, *argv], BUILDAH_ISOLATION="chroot", TMPDIR=str(builder.images))
