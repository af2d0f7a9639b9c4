"""Layers of images and artifacts: what each is by its media type, which files there are after all of them, where the model is. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pagoda_fetch.core.archive import most
from pagoda_fetch.core.errors import Mismatch, Refused, Unsupported
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Checksum, Layer, Listing, RemoteFile, size_text
from pagoda_fetch.core.names import CONFIGS, chosen, taken
from pagoda_fetch.core.tar import Entry

MODELS: Final = "models"
_IMAGES: Final = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
_CONFIGS: Final = (*_IMAGES, "application/vnd.cncf.model.config.v1+json", "application/vnd.kitops.modelkit.config.v1+json")
_TITLES: Final = ("org.opencontainers.image.title", "org.cncf.model.filepath")
# What oras says of a folder: that it is to be unpacked, and the digest before the compression.
_UNPACK: Final = "io.deis.oras.content.unpack"
_UNPACKED: Final = "io.deis.oras.content.digest"
_GENERIC: Final = ("application/vnd.oci.image.", "application/vnd.docker.image.")
_METADATA: Final = "org.cncf.model.file.metadata+json"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
# Layers of files in general, and those of a ModelKit or ModelPack that hold the model.
_ARCHIVE: Final = re.compile(
    r"application/vnd\.(?:oci\.image\.layer(?:\.nondistributable)?\.v1|docker\.image\.rootfs\.(?:foreign\.)?diff"
    r"|kitops\.modelkit\.(?:model|modelpart)\.v1|cncf\.model\.weight(?:\.config)?\.v1)\.tar(?:[.+]([\w-]+))?"
)
# What lies beside a model.
_BESIDE: Final = re.compile(r"application/vnd\.(?:kitops\.modelkit|cncf\.model)\.(?:dataset|code|docs?|prompts?)\.v1\.(?:tar|raw\+)[\w+-]*")
# Folders above a file that may be a model's. What hides a path is looked for in each of them.
_DEEPEST: Final = 32
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"


def listed(manifest: Mapping[str, Any], config: Mapping[str, Any], limits: Limits, revision: str) -> Listing | None:
    """The layers that hold the model, where some are archives; None if all are files under their own names."""
    layers = manifest["layers"]
    within = MODELS if config_type(manifest) in _IMAGES and isinstance(config.get("rootfs"), dict) else ""
    if not any(_packs(layer, within) for layer in layers):
        return None
    promised = _diff_ids(config, [str(layer.get("digest")) for layer in layers])
    found = [_layer(index, layer, within, promised) for index, layer in enumerate(layers)]
    listing = Listing(tuple(file for file in found if file is not None), revision)
    if len(listing.files) > limits.max_files or listing.size > limits.max_bytes:
        raise Refused(
            f"{len(listing.files)} layers of {size_text(listing.size)}: at most {limits.max_files} of {size_text(limits.max_bytes)}"
        )
    return listing


def is_archive(layer: Mapping[str, Any]) -> bool:
    """Whether a layer may be an archive that holds a model."""
    return _ARCHIVE.fullmatch(str(layer.get("mediaType", ""))) is not None


def _packs(layer: Mapping[str, Any], within: str) -> bool:
    """Whether it is one. oras gives files this type, too; outside of images, what it is to unpack has its mark."""
    if not is_archive(layer) or within or not str(layer["mediaType"]).startswith(_GENERIC):
        return is_archive(layer)
    annotations = _annotations(layer)
    return not annotations.get(_TITLES[0]) or annotations.get(_UNPACK) == "true"


def config_type(manifest: Mapping[str, Any]) -> str:
    """The media type of the config, where it says what layers are before their compression; else empty."""
    config = manifest.get("config")
    media = str(config.get("mediaType", "")) if isinstance(config, dict) else ""
    return media if media in _CONFIGS else ""


def title(layer: Mapping[str, Any]) -> str | None:
    """The file that a layer is, or is an archive of."""
    annotations = _annotations(layer)
    name = next((annotations[key] for key in _TITLES if annotations.get(key)), None)
    return None if name is None else str(name)


def _annotations(layer: Mapping[str, Any]) -> Mapping[str, Any]:
    annotations = layer.get("annotations") or {}
    if not isinstance(annotations, dict):
        raise Refused("the manifest's layers are not descriptors")
    return annotations


def described(layer: Mapping[str, Any], name: str) -> RemoteFile:
    """A layer under the name, by its digest and size."""
    digest, size = layer.get("digest"), layer.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or type(size) is not int or size < 0:
        raise Refused(f"layer {name[:200]!r}: needs a sha256 digest and a size")
    return RemoteFile(name, size, digest, digest, Checksum("sha256", digest.removeprefix("sha256:")))


def as_file(layer: Mapping[str, Any]) -> RemoteFile | None:
    """A layer that is one file; None for one without a name."""
    name, media = title(layer), str(layer.get("mediaType", ""))
    if name is None or _BESIDE.fullmatch(media):
        return None
    if (media.partition("+")[0].endswith("tar") and not is_archive(layer)) or media.endswith((".raw+gzip", ".raw+zstd")):
        raise Unsupported(f"layer {name[:200]!r} is {media!r}, which is not unpacked: push files as they are, or an image of them")
    return described(layer, name)


def _layer(index: int, layer: Mapping[str, Any], within: str, promised: Mapping[str, str]) -> RemoteFile | None:
    staged = f".layer-{index:05d}"  # no name of a file that is taken
    if not _packs(layer, within):
        file = as_file(layer)
        return file and (file._replace(name=staged, layer=Layer("raw", clean(file.name))) if taken(_base(file.name)) else None)
    file, media = described(layer, staged), str(layer["mediaType"])
    packed = found[1] if (found := _ARCHIVE.fullmatch(media)) else None
    if packed not in (None, "gzip"):
        raise Unsupported(f"layer {index} is {media!r}: {packed} is not unpacked; push it with gzip or without compression")
    diff_id = promised.get(file.where) or str(_annotations(layer).get(_UNPACKED, ""))
    if not packed and diff_id not in ("", file.where):
        raise Mismatch(f"layer {index} has digest {file.where}, the config promises {diff_id}")
    return file._replace(layer=Layer("gzip" if packed else "tar", title(layer) or "", within, diff_id, _unpacked(layer, file.size)))


def _unpacked(layer: Mapping[str, Any], size: int) -> int:
    """Bytes of the file in an archive of one, as ModelPack announces them; the layer's own size where nothing does."""
    try:
        said = json.loads(_annotations(layer).get(_METADATA, "{}")).get("size")
    except (ValueError, TypeError, AttributeError, RecursionError):
        return size
    return said if type(said) is int and size < said <= most(size) else size


def _diff_ids(config: Mapping[str, Any], digests: Sequence[str]) -> dict[str, str]:
    """What the config promises of layers before their compression, by the layer's digest: images, ModelPack, KitOps."""
    for part, key in (("rootfs", "diff_ids"), ("modelfs", "diffIds")):
        found = config[part].get(key) if isinstance(config.get(part), dict) else None
        if isinstance(found, list) and len(found) == len(digests):
            return {digest: promise for digest, promise in zip(digests, found, strict=True) if isinstance(promise, str)}
    model = config.get("model")
    parts = [model, *(model.get("parts") or ())] if isinstance(model, dict) else []
    pairs = [(part.get("digest"), part.get("diffId")) for part in parts if isinstance(part, dict)]
    return {digest: promise for digest, promise in pairs if isinstance(digest, str) and isinstance(promise, str)}


class Part(NamedTuple):
    """A file of a layer; `where` it is staged."""

    path: str
    size: int
    sha256: str
    where: str


class Contents(NamedTuple):
    """A layer's files, and what it hides of the layers below it: a path, or with a '/' at its end all in a folder (the root is '/')."""

    parts: tuple[Part, ...] = ()
    hidden: frozenset[str] = frozenset()


def clean(name: str) -> str:
    """An entry's path from the archive's root, as tar reads it: images of Nix have a leading '/'. Refused where it leaves the root."""
    parts = name.split("/")
    if ".." in parts or "\0" in name:
        raise Refused(f"an archive has an entry named {name[:200]!r}; names must not have '..'")
    return "/".join(part for part in parts if part not in ("", "."))


def inside(path: str, within: str) -> bool:
    """Whether a clean path is below the folder."""
    return not within or path.startswith(f"{within}/")


def wanted(path: str, within: str, entry: Entry) -> bool:
    """Whether an entry is a file for a replica; Refused for a link or a device in the place of one."""
    if entry.kind == "folder" or not inside(path, within) or not taken(_base(path)) or depth(path) > _DEEPEST:
        return False
    if entry.kind == "other":
        raise Refused(f"{path[:200]!r} is a link or a device; only regular files are taken from an archive")
    return True


def hides(path: str, within: str, entry: Entry) -> str:
    """What an entry hides, as in `Contents`; empty where it hides nothing of ours. A link takes the place of a folder."""
    if entry.kind == "other" and (path == within or inside(path, within)):
        return path
    return whiteout(path, within)


def whiteout(path: str, within: str) -> str:
    """The same of a mark, which only its name makes one."""
    folder, slash, name = path.rpartition("/")
    if name == _OPAQUE:
        hidden = f"{folder}/"
    elif name.removeprefix(_WHITEOUT) in ("", ".", ".."):
        return ""  # of a mark, it would name the folder itself
    elif name.startswith(_WHITEOUT) and not name.startswith(_WHITEOUT * 2):
        hidden = folder + slash + name.removeprefix(_WHITEOUT)
    else:
        return ""
    place = hidden.strip("/")
    return hidden if place in ("", within) or inside(place, within) else ""


def visible(layers: Sequence[Contents]) -> dict[str, Part]:
    """The files after all layers, by path: of two, the later layer's."""
    found: dict[str, Part] = {}
    hidden: set[str] = set()
    for layer in reversed(layers):
        for part in layer.parts:
            if part.path not in found and hidden.isdisjoint(_hiding(part.path)):
                found[part.path] = part
        hidden |= layer.hidden | {part.path for part in layer.parts}
    return found


def _hiding(path: str) -> list[str]:
    """Whatever hides a path."""
    parts = path.split("/")
    above = ["/".join(parts[:count]) for count in range(1, len(parts))]
    return [path, *above, "/", *(f"{folder}/" for folder in above)]


def model(layers: Sequence[Contents], limits: Limits) -> dict[str, Part]:
    """The model's files by their names: those of the highest folder that has a config.json. Refused where they make none."""
    parts = visible(layers)
    root = root_of(parts)
    here = {_base(path): part for path, part in parts.items() if path.rpartition("/")[0] == root}
    names = chosen(sorted(here) or sorted(parts))
    size = sum(here[name].size for name in names)
    if len(names) > limits.max_files or size > limits.max_bytes:
        raise Refused(f"{len(names)} files of {size_text(size)}: at most {limits.max_files} of {size_text(limits.max_bytes)} are taken")
    return {name: here[name] for name in names}


def root_of(paths: Iterable[str]) -> str:
    """The highest folder with a config.json; the folder of nothing where none has one, so that the choice of files refuses it."""
    folders = sorted({path.rpartition("/")[0] for path in paths if _base(path) in CONFIGS}, key=lambda folder: (depth(folder), folder))
    if len(folders) > 1 and depth(folders[0]) == depth(folders[1]):
        raise Refused(f"there is a config.json in {folders[0]!r} and in {folders[1]!r}; one artifact must hold one model")
    return folders[0] if folders else ""


def depth(folder: str) -> int:
    """How many folders a folder is below the archive's root."""
    return len(folder.split("/")) if folder else 0


def _base(path: str) -> str:
    return path.rpartition("/")[2]
