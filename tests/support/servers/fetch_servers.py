"""Real servers on loopback for fetch's tests: an S3 server (moto, a process), an OCI registry (go-containerregistry, a process), and a wire
between them and us that cuts, counts and trickles.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
_MOTO = """
import os
said = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # Flask greets on standard output
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
server.start()
print(*server.get_host_and_port(), file=said, flush=True)
server._thread.join()
"""
_GRACE = 300


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of an empty S3 server."""
    # Three objects a page: every listing has several pages.
    more = {"PYTHONWARNINGS": "ignore", "AWS_DEFAULT_REGION": "us-east-1", "MOTO_S3_DEFAULT_MAX_KEYS": "3"}
    environment = {**os.environ, **more}
    with _process([sys.executable, "-c", _MOTO], environment) as line:
        host, port = line.split()
        yield f"http://{host}:{port}"


def fill_bucket(endpoint: str, bucket: str, files: dict[str, bytes]) -> None:
    """Makes the bucket where it is missing."""
    with httpx.Client(base_url=endpoint, headers=_signed(), timeout=60) as client:
        assert client.put(f"/{bucket}").status_code in (200, 409)
        for name, body in files.items():
            client.put(f"/{bucket}/{name}", content=body).raise_for_status()


def _signed() -> dict[str, str]:
    """Who asks matters to moto, not whether the signature is right."""
    scope = "20260101/us-east-1/s3/aws4_request"
    return {"authorization": f"AWS4-HMAC-SHA256 Credential=test/{scope}, SignedHeaders=host, Signature=0"}


@contextmanager
def oci_registry(folder: Path) -> Iterator[str]:
    """The address (host:port) of an empty registry."""
    if shutil.which("go") is None:
        pytest.skip("needs Go: the registry is compiled from its module")
    binary = folder / "registry"
    module = ROOT / "devcluster/registry"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "CGO_ENABLED": "0"}
    subprocess.run(["go", "build", "-trimpath", "-o", str(binary), "."], cwd=module, check=True, env=environment)
    with _process([str(binary)], dict(os.environ)) as line:
        yield line.strip()


def push(
    registry: str, repository: str, files: dict[str, bytes], tag: str = "v1", media: str = "application/octet-stream", **more: Any
) -> str:
    """What `oras push` does; the manifest's digest."""
    layers = [(media, body, {"org.opencontainers.image.title": name}) for name, body in files.items()]
    return push_layers(registry, repository, layers, ("application/vnd.oci.empty.v1+json", b"{}"), tag, **more)


def push_layers(
    registry: str, repository: str, layers: list[tuple[str, bytes, dict[str, str]]], config: tuple[str, bytes], tag: str = "v1", **more: Any
) -> str:
    """Layers and a config: media type, bytes and, of a layer, annotations. The manifest's digest."""
    base, media_type = f"http://{registry}/v2/{repository}", "application/vnd.oci.image.manifest.v1+json"
    blobs = [_descriptor(media, body) | ({"annotations": more} if more else {}) for media, body, more in layers]
    with httpx.Client(timeout=60) as client:
        for body in (*(body for _, body, _ in layers), config[1]):
            where = client.post(f"{base}/blobs/uploads/").headers["location"]
            digest = _descriptor("", body)["digest"]
            client.put(httpx.URL(f"http://{registry}").join(where), params={"digest": digest}, content=body).raise_for_status()
        manifest = json.dumps({"schemaVersion": 2, "mediaType": media_type, "config": _descriptor(*config), "layers": blobs, **more})
        client.put(f"{base}/manifests/{tag}", content=manifest, headers={"content-type": media_type}).raise_for_status()
    return f"sha256:{hashlib.sha256(manifest.encode()).hexdigest()}"


def _descriptor(media: str, body: bytes) -> dict[str, Any]:
    return {"mediaType": media, "digest": f"sha256:{hashlib.sha256(body).hexdigest()}", "size": len(body)}


def push_index(registry: str, repository: str, manifests: list[tuple[str, str]], tag: str) -> None:
    """An index of manifests that are there: each one's digest and architecture, "" for none."""
    media = "application/vnd.oci.image.{0}.v1+json"
    entries: list[dict[str, Any]] = [
        {"mediaType": media.format("manifest"), "digest": digest, "size": 1}
        | ({"platform": {"os": "linux", "architecture": architecture}} if architecture else {})
        for digest, architecture in manifests
    ]
    index = {"schemaVersion": 2, "mediaType": media.format("index"), "manifests": entries}
    url = f"http://{registry}/v2/{repository}/manifests/{tag}"
    httpx.put(url, content=json.dumps(index), headers={"content-type": media.format("index")}, timeout=60).raise_for_status()


@contextmanager
def _process(argv: list[str], environment: dict[str, str]) -> Iterator[str]:
    """A server that says its address on its first line."""
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"{argv[0]} ended with {process.wait()}"
        yield line
    finally:
        process.kill()
        process.wait(_GRACE)
        if process.stdout is not None:
            process.stdout.close()


@dataclass
class Wire:
    """A TCP proxy. `cuts`: the next connections are cut after so many bytes towards the client; after `hold_after`
    bytes nothing comes any more."""

    target: tuple[str, int]
    cuts: list[int] = field(default_factory=list)
    hold_after: int | None = None
    at_cut: Callable[[], None] | None = None
    sent: int = 0
    connections: int = 0
    holding: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def serve(self, listener: socket.socket) -> None:
        while not self.closed.is_set():
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            upstream = socket.create_connection(self.target)
            threading.Thread(target=_copy, args=(client, upstream), daemon=True).start()
            threading.Thread(target=self.answer, args=(upstream, client), daemon=True).start()

    def answer(self, upstream: socket.socket, client: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while data := upstream.recv(65536):
                if self.hold_after is not None and self.sent + len(data) > self.hold_after:
                    self.holding.set()
                    self.closed.wait()
                    break
                if self.cuts and passed + len(data) > self.cuts[0]:
                    data = data[: self.cuts.pop(0) - passed]
                    self.sent += len(data)
                    client.sendall(data)
                    if self.at_cut is not None:
                        self.at_cut()
                    break
                passed += len(data)
                self.sent += len(data)  # before: who has it may ask for the count at once
                client.sendall(data)
        for end in (client, upstream):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


@contextmanager
def wire(address: str) -> Iterator[Wire]:
    """A wire to `host:port`; its own address is `address`."""
    host, _, port = address.removeprefix("http://").partition(":")
    made = Wire((host, int(port)))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made.address = f"127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=made.serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.closed.set()
            listener.shutdown(socket.SHUT_RDWR)
    thread.join(_GRACE)
