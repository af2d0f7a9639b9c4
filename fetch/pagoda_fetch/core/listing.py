"""What a source holds: files, their sizes and what is promised of their content; and the digest over a tree. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from pagoda_fetch.core.errors import Refused
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.names import WEIGHTS, chosen

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_KILO: Final = 1024


class Checksum(NamedTuple):
    """What a file's bytes must hash to. `git` is git's name of a blob: SHA-1 over its length and content."""

    kind: Literal["sha256", "git"]
    value: str


class Layer(NamedTuple):
    """How a layer of an artifact holds files: as one (`raw`), or as an archive of which only what is below `within` counts.

    `path`: its title. `diff_id`: the archive's digest before its compression, if that is promised. `unpacked`: bytes, as far as is known.
    """

    form: Literal["raw", "tar", "gzip"]
    path: str = ""
    within: str = ""
    diff_id: str = ""
    unpacked: int = 0


class RemoteFile(NamedTuple):
    """A file at a source. `where` and `version` are the source's own words for opening this very content of it.

    With a `layer`, its name is only where it is staged.
    """

    name: str
    size: int
    where: str
    version: str = ""
    checksum: Checksum | None = None
    layer: Layer | None = None

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.name if self.layer is None else f"layer {(self.layer.path or self.where)[:200]}"

    @property
    def sha256(self) -> str:
        """What the source promises; empty where it promises nothing of that kind."""
        return self.checksum.value if self.checksum is not None and self.checksum.kind == "sha256" else ""


@dataclass(frozen=True)
class Listing:
    """All files to fetch, and the revision that they are of (empty where the source has none)."""

    files: tuple[RemoteFile, ...]
    revision: str = ""

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    @property
    def layered(self) -> bool:
        """Whether these are layers with files in them: then names, digest and exact size are known when they are unpacked."""
        return any(file.layer for file in self.files)

    @property
    def counted(self) -> str:
        """What `unpacked` counts that may be no model's; empty where it counts a model only."""
        whole = any(file.layer and file.layer.within for file in self.files)
        return "; all layers of the image are counted, because its manifest does not say which of them hold the model" if whole else ""

    @property
    def compressed(self) -> bool:
        """Whether `unpacked` counts layers whose contents are larger by nobody knows how much."""
        return any(file.layer and file.layer.form == "gzip" and file.layer.unpacked <= file.size for file in self.files)

    @property
    def unpacked(self) -> int:
        """Bytes on the disk, at least."""
        return sum(max(file.size, file.layer.unpacked if file.layer else 0) for file in self.files)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights."""
        return sum(file.size for file in self.files if file.name.endswith(WEIGHTS))

    @property
    def key(self) -> str:
        """Equal for equal content, as far as the source tells contents apart."""
        lines = (f"{file.name}\n{file.size}\n{file.version}\n{file.checksum}\n" for file in self.files)
        return hashlib.sha256("".join([self.revision, "\n", *lines]).encode()).hexdigest()[:16]

    @property
    def digest(self) -> str:
        """The tree's digest, where the source promises every file's; else empty."""
        known = {file.name: file.sha256 for file in self.files}
        return tree_digest(known) if all(known.values()) and not self.layered else ""


def select(files: Sequence[RemoteFile], limits: Limits, *, prefix: str = "", revision: str = "") -> Listing:
    """The files below `prefix` that are taken, within the caps; Refused names what is too much."""
    below = prefix.strip("/") + "/" if prefix.strip("/") else ""
    inside = [file._replace(name=file.name.removeprefix(below)) for file in files if file.name.startswith(below)]
    wanted = chosen([file.name for file in inside if file.name])
    listing = Listing(tuple(sorted(file for file in inside if file.name in wanted)), revision)
    if len(listing.files) > limits.max_files:
        raise Refused(f"{len(listing.files)} files: at most {limits.max_files} are taken")
    if any(file.size < 0 for file in listing.files) or listing.size > limits.max_bytes:
        raise Refused(f"{size_text(listing.size)}: at most {size_text(limits.max_bytes)} are taken")
    return listing


def tree_digest(sha256: Mapping[str, str]) -> str:
    """The digest of a folder, as `(cd FOLDER && LC_ALL=C sha256sum *) | sha256sum` gives it."""
    lines = (f"{value}  {name}\n" for name, value in sorted(sha256.items()))
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def folder(digest: str) -> str:
    """The folder of a digest: a mount path may hold no colon."""
    return digest.replace(":", "-")


def size_text(size: float) -> str:
    """Bytes as people read them."""
    for unit in _UNITS[:-1]:
        if size < _KILO:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KILO
    return f"{size:.1f} {_UNITS[-1]}"
