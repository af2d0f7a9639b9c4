"""Layers as tools make them: tar archives, images (a modelcar) and ModelKits, and their manifests in the hub double."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from typing import Any

from support.servers.fetch_hub import HubDouble

IMAGE = "application/vnd.oci.image.layer.v1.tar+gzip"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
KIT = "application/vnd.kitops.modelkit.{0}.v1.tar"
KIT_CONFIG = "application/vnd.kitops.modelkit.config.v1+json"
Content = bytes | tarfile.TarInfo
Blob = tuple[str, bytes, dict[str, str]]


def tar(entries: Mapping[str, Content], form: int = tarfile.PAX_FORMAT) -> bytes:
    """An archive of files; what is not bytes is an entry of its own kind (`link`)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in entries.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                archive.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A folder, link or device."""
    info = tarfile.TarInfo()
    info.type, info.linkname = kind, target
    return info


def image(*layers: bytes, promised: list[str] | None = None) -> tuple[list[Blob], tuple[str, bytes]]:
    """An image of tar archives, compressed, with the digests before that in its config."""
    ids = promised or [digest(layer) for layer in layers]
    config = json.dumps({"os": "linux", "rootfs": {"type": "layers", "diff_ids": ids}}).encode()
    return [(IMAGE, gzip.compress(layer, 1, mtime=0), {}) for layer in layers], (IMAGE_CONFIG, config)


def kit(layers: Mapping[str, bytes], packed: str = "") -> tuple[list[Blob], tuple[str, bytes]]:
    """A ModelKit: archives by the kind of their layer, with a Kitfile as config."""
    bodies = {kind: gzip.compress(body, 1) if packed else body for kind, body in layers.items()}
    model = {"path": ".", "digest": digest(bodies["model"]), "diffId": digest(layers["model"])} if "model" in layers else {}
    config = json.dumps({"manifestVersion": "1.0.0", "model": model}).encode()
    return [(KIT.format(kind) + packed, body, {}) for kind, body in bodies.items()], (KIT_CONFIG, config)


def digest(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def shelve(hub: HubDouble, layers: list[Blob], config: tuple[str, bytes]) -> str:
    """The artifact behind the hub double, whose faults strike layer n under the name `layer-n`; its address, for revision v1."""
    descriptors: list[dict[str, Any]] = []
    for number, (media, body, more) in enumerate(layers):
        hub.files[f"layer-{number}"] = body
        hub.extra[f"/v2/org/model/blobs/{digest(body)}"] = lambda request, number=number: request.file(f"layer-{number}")  # type: ignore[misc]
        descriptors.append({"mediaType": media, "digest": digest(body), "size": len(body), "annotations": more})
    media, body = config
    hub.extra[f"/v2/org/model/blobs/{digest(body)}"] = lambda request: request.answer(200, body)  # type: ignore[attr-defined]
    described = {"mediaType": media, "digest": digest(body), "size": len(body)}
    manifest = json.dumps({"config": described, "layers": descriptors}).encode()
    hub.extra["/v2/org/model/manifests/v1"] = lambda request: request.answer(200, manifest)  # type: ignore[attr-defined]
    return f"oci://{hub.url.removeprefix('http://')}/org/model"
