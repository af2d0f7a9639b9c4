"""A hub on loopback, as huggingface_hub asks one: the API's listing, addresses by commit, large files behind a signed redirect, ranges.

It is as strict as a real one. Sizes and digests are sent only where blobs are asked for, a redirect needs its signature, and a range that
begins after the end is refused.

Beside it serves whatever else a test puts on its shelf. It logs what it was asked and counts the bytes that it sent of each file.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.servers.certificates import CERT, KEY

COMMIT = "a" * 40
LARGE = 100_000  # bytes from which on a file lies in LFS
_SIGNATURE = "signature=secret"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Fault:
    """What goes wrong with a file's bytes, `times` times. A cut counts from where the answer begins, a trickle, a hold (nothing more comes)
    and a flip from the file's beginning."""

    cut_after: int | None = None
    trickle_after: int | None = None
    hold_after: int | None = None
    flip_at: int | None = None
    status: int | None = None
    times: int = 1
    # Set when the fault begins; a trickle and a hold go on until `released`; `ended` once nothing more of it is sent.
    begun: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


@dataclass
class HubDouble:
    """One repository `org/model`."""

    files: dict[str, bytes]
    token: str = ""
    commit: str = COMMIT
    status: int | None = None
    ranges: bool = True
    lengths: bool = True
    # A mirror may give no sizes and commit in its listing, and be below a path.
    described: bool = True
    prefix: str = ""
    absent: int = 404
    faults: dict[str, Fault] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    extra: dict[str, Callable[[BaseHTTPRequestHandler], None]] = field(default_factory=dict)
    url: str = ""

    def listing(self, *, blobs: bool) -> dict[str, Any]:
        blobs = blobs and self.described
        siblings = [self._sibling(name, body) if blobs else {"rfilename": name} for name, body in self.files.items()]
        return {"id": "org/model", **({"sha": self.commit} if self.described else {}), "siblings": siblings}

    def _sibling(self, name: str, body: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(f"blob {len(body)}\0".encode() + body, usedforsecurity=False).hexdigest()
        entry = {"rfilename": name, "size": len(body), "blobId": blob}
        if len(body) >= LARGE:
            entry["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
        return entry

    def asked_for(self, path: str) -> list[dict[str, str]]:
        return [headers for asked, headers in self.asked if asked == path]


@contextmanager
def running_hub(files: dict[str, bytes], host: str = "127.0.0.1", tls: Path | None = None, **words: Any) -> Iterator[HubDouble]:
    """`tls`: the folder of its certificate (certificates.py); without one it speaks HTTP."""
    hub = HubDouble(files, **words)
    server = ThreadingHTTPServer((host, 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls / CERT, tls / KEY)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    hub.url = f"{'https' if tls else 'http'}://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        for fault in hub.faults.values():
            fault.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubDouble
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, query = unquote(urlsplit(self.path).path).removeprefix(self.hub.prefix), urlsplit(self.path).query
        self.hub.asked.append((path, {name.lower(): value for name, value in self.headers.items()}))
        self.hub.queries.append(parse_qs(query))
        if path in self.hub.extra:
            self.hub.extra[path](self)
        elif path.startswith("/api/models/"):
            self.api(path, blobs=parse_qs(query).get("blobs", [""])[0].lower() == "true")
        elif path.startswith("/cdn/") and query != _SIGNATURE:
            self.answer(403, b"")
        elif path.startswith("/cdn/"):
            self.file(path.removeprefix("/cdn/"))
        else:
            self.resolve(path)

    def do_HEAD(self) -> None:
        """What GET would say of a file, as it is now."""
        path = unquote(urlsplit(self.path).path).removeprefix(self.hub.prefix)
        self.hub.asked.append((path, {name.lower(): value for name, value in self.headers.items()}))
        if "/resolve/" in path:
            self.linked(path)
            return
        body = self.hub.files.get(path.rpartition("/")[2]) if path in self.hub.extra else None
        self.send_response(self.hub.absent if body is None else 200)
        if body is not None and self.hub.lengths:
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')
        self.end_headers()

    def linked(self, path: str) -> None:
        """What the hub's HEAD says: of a large file, before the redirect."""
        body = self.hub.files.get(path.rpartition("/")[2])
        if body is None or not self.allowed():
            self.send_response(401 if body else self.hub.absent)
            self.send_header("content-length", "0")
        elif len(body) >= LARGE:
            self.send_response(302)
            self.send_header("location", f"https://cdn.invalid/{_SIGNATURE}")
            self.send_header("x-linked-size", str(len(body)))
            self.send_header("x-linked-etag", f'"{hashlib.sha256(body).hexdigest()}"')
        else:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", f'"{hashlib.sha1(body, usedforsecurity=False).hexdigest()}"')
        self.end_headers()

    def do_POST(self) -> None:
        """A token endpoint's."""
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self.do_GET()

    def allowed(self) -> bool:
        return not self.hub.token or self.headers.get("authorization") == f"Bearer {self.hub.token}"

    def api(self, path: str, *, blobs: bool) -> None:
        repository, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        if self.hub.status is not None:
            self.answer(self.hub.status, b"{}")
        elif not self.allowed():
            self.answer(401, b"{}", {"x-error-code": "RepoNotFound"})
        elif repository != "org/model":
            self.answer(404, b"{}", {"x-error-code": "RepoNotFound"})
        elif revision not in ("", "main", self.hub.commit):
            self.answer(404, b"{}", {"x-error-code": "RevisionNotFound"})
        else:
            self.answer(200, json.dumps(self.hub.listing(blobs=blobs)).encode(), {"content-type": "application/json"})

    def resolve(self, path: str) -> None:
        found = re.fullmatch(r"/org/model/resolve/([^/]+)/(.+)", path)
        if found is None or found[1] != (self.hub.commit if self.hub.described else "main") or found[2] not in self.hub.files:
            self.answer(self.hub.absent, b"")
        elif not self.allowed():
            self.answer(401, b"")
        elif found[2] in self.hub.moved or len(self.hub.files[found[2]]) >= LARGE:
            target = self.hub.moved.get(found[2], f"/cdn/{found[2]}?{_SIGNATURE}")
            self.answer(302, b"", {"location": target})
        else:
            self.file(found[2])

    def file(self, name: str, headers: dict[str, str] | None = None) -> None:
        body, start, status = self.hub.files[name], 0, 200
        fault = self.hub.faults.get(name)
        if (found := _RANGE.fullmatch(self.headers.get("range", ""))) and self.hub.ranges:
            start, status = int(found[1]), 206
        if start >= max(1, len(body)):
            self.answer(416, b"", {"content-range": f"bytes */{len(body)}"})
            return
        if fault is not None and fault.times > 0:
            fault.times -= 1
        else:
            fault = None
        if fault is not None and fault.status is not None:
            self.answer(fault.status, b"")
            return
        self.send_response(status)
        self.send_header("content-length", str(len(body) - start))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if status == 206:
            self.send_header("content-range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        self.body(name, body[start:], start, fault)

    def body(self, name: str, data: bytes, start: int, fault: Fault | None) -> None:
        if fault is not None and fault.flip_at is not None and start <= fault.flip_at:
            at = fault.flip_at - start
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        stop = fault.cut_after if fault is not None and fault.cut_after is not None else None
        late = next((at for at in (fault.trickle_after, fault.hold_after) if at is not None), None) if fault is not None else None
        slow = max(0, late - start) if late is not None else None
        whole = next((limit for limit in (stop, slow) if limit is not None), len(data))
        self.send(name, data[:whole])
        if fault is not None and (stop is not None or slow is not None):
            fault.begun.set()
        if stop is not None:
            self.close_connection = True
            self.connection.close()
        elif slow is not None and fault is not None:
            for byte in data[whole:]:
                if fault.released.wait(0.02 if fault.hold_after is None else None):
                    break
                self.send(name, bytes([byte]))
            self.close_connection = True
        if fault is not None:
            fault.ended.set()

    def send(self, name: str, data: bytes) -> None:
        for at in range(0, len(data), 65536):
            piece = data[at : at + 65536]
            self.hub.sent[name] += len(piece)  # before: who has it may ask for the count at once
            try:
                self.wfile.write(piece)
            except OSError:
                self.close_connection = True
                return

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("content-length", str(len(body)))
        try:
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """The test reads `asked`."""
