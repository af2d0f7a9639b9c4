"""What browsers and proxies meet: host names, origins, a prefix, a page about the API, and TLS. The front is real, on real sockets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import socket
import ssl
from html.parser import HTMLParser

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pagoda_contracts.launch import AuthConfig, Listen, TlsConfig
from pagoda_contracts.names import HEADER_ERROR_CODE
from pagoda_daemon.api.http.listener import bind
from pagoda_daemon.api.http.tls import tls_context
from pagoda_daemon.api.http.web import KnownHosts, Web, host_name, is_known, without_prefix
from pagoda_daemon.core.errors import ConfigRejected
from structlog.testing import capture_logs
from support.judges.refusals import COMPLETIONS, completion
from support.servers.certificates import mount, write_pair
from support.servers.local_replica import HOST, Held, local_replica, read_answer, request

PAGE = "https://chat.example.org"


def replica_with(**listen):
    return local_replica(listen=listen)


def headers_of(answer):
    lines = answer.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    return int(lines[0].split()[1]), {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}


# Host names


@pytest.mark.parametrize(
    ("host", "known"),
    [
        *((name, True) for name in ("localhost", "LOCALHOST:8000", "a.localhost:80", "127.0.0.1:8000", "[::1]:8000", "10.0.0.7")),
        *((name, True) for name in ("my-laptop", "My-Laptop:8000", "my-laptop.", "")),
        *((name, False) for name in ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example")),
        *((name, False) for name in ("my-laptop.evil.example", "xlocalhost", "[evil]", "127.0.0.1@evil", "0x7f.1.evil")),
    ],
)
def test_a_host_is_known_by_its_name(host, known):
    assert is_known(host, frozenset({"my-laptop"})) is known


def test_a_hosts_name_has_no_port():
    assert [host_name(one) for one in ("A.b:1", "[::1]:1", "[::1]", "a", "a.")] == ["a.b", "::1", "::1", "a", "a"]


async def test_a_page_under_a_name_of_its_own_is_refused_before_anything_is_computed():
    with capture_logs() as found:
        async with replica_with(allowed_hosts=("My-Laptop",), cors_origins=(PAGE,)) as replica:
            status, error = await replica.post(COMPLETIONS, completion(), host="evil.example:8000")
            assert (status, error["error"]["code"]) == (403, "permission_denied")
            assert "--allowed-host" in error["error"]["message"]
            assert replica.engine.submitted == []
            status, error = await replica.post(COMPLETIONS, completion(), origin="https://evil.example")
            assert (status, error["error"]["code"]) == (403, "permission_denied")
            assert "--cors-origin" in error["error"]["message"]
            assert replica.engine.submitted == []
            for origin in ("http://localhost:3000", f"http://{HOST}:1", "http://my-laptop", PAGE):
                assert (await replica.post(COMPLETIONS, completion(), origin=origin))[0] == 200
            for name in ("my-laptop:8000", "localhost", HOST):
                assert (await replica.post(COMPLETIONS, completion(), host=name))[0] == 200
    refused = [line["refusal"] for line in found if line["event"] == "request" and line["status"] == 403]
    assert refused == ["permission_denied"] * 2


@pytest.mark.parametrize("origin", ["null", "", "http://", "evil.example", "file://", "http://evil.example:80", "http://[evil"])
async def test_a_page_without_a_name_of_ours_may_not_ask(origin):
    sent = []

    async def app(*_):
        sent.append("answered")

    async def send(message):
        sent.append(message.get("status"))

    scope = {"type": "http", "path": "/", "headers": [(b"host", b"localhost"), (b"origin", origin.encode())], "state": {}}
    await KnownHosts(app, frozenset(), ())(scope, None, send)
    assert sent[0] == 403


def test_every_name_is_answered_where_none_is_listed():
    assert [Web.of(Listen(allowed_hosts=names), closed=False).hosts for names in (None, ("*",), ("a", "*"))] == [None, None, None]


# Origins


async def test_a_listed_origin_may_ask_and_read_and_another_may_not():
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type,x-stainless-os"}
    async with replica_with(cors_origins=(PAGE,)) as replica:
        status, headers = headers_of(await replica.send(request("OPTIONS", COMPLETIONS, origin=PAGE, **ask)))
        assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
        assert headers["access-control-allow-headers"] == ask["access-control-request-headers"]
        assert "access-control-allow-credentials" not in headers
        body = json.dumps(completion()).encode()
        status, headers = headers_of(await replica.send(request("POST", COMPLETIONS, body, origin=PAGE)))
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (200, PAGE, "Origin")
        assert {"x-request-id", "request-id"} <= set(headers["access-control-expose-headers"].split(", "))
        status, headers = headers_of(await replica.send(request("POST", COMPLETIONS, b"{", origin=PAGE)))
        assert (status, headers["access-control-allow-origin"]) == (400, PAGE)
        for other in ("https://evil.example", "http://chat.example.org", f"{PAGE}.evil.example", "null"):
            status, headers = headers_of(await replica.send(request("OPTIONS", COMPLETIONS, origin=other, **ask)))
            assert (status, "access-control-allow-origin" in headers) == (400, False)
            status, headers = headers_of(await replica.send(request("POST", COMPLETIONS, body, origin=other)))
            assert "access-control-allow-origin" not in headers


async def test_a_preflight_needs_no_key(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"{hashlib.sha256(b'k').hexdigest()} alice\n")
    async with local_replica(listen={"cors_origins": (PAGE,)}, auth=AuthConfig(keys_file=str(keys))) as replica:
        raw = request("OPTIONS", COMPLETIONS, origin=PAGE, access_control_request_method="POST")
        assert headers_of(await replica.send(raw))[0] == 200
        assert (await replica.post(COMPLETIONS, completion(), origin=PAGE))[0] == 401
        assert (await replica.get("/docs"))[0] == 200


@pytest.mark.parametrize("origin", ["chat.example.org", f"{PAGE}/", f"{PAGE}/x", "https://*.example.org", "https://a b", "null", ""])
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ConfigRejected, match=r"listen\.corsOrigins"):
        Web.of(Listen(cors_origins=(origin,)), closed=False)


def test_origins_are_taken_as_browsers_write_them():
    given = ("https://Chat.example.org:443", "http://a:80", "http://a:443", "http://[::1]:3000")
    assert Web.of(Listen(cors_origins=given), closed=True).origins == (PAGE, "http://a", "http://a:443", "http://[::1]:3000")


def test_a_wildcard_is_refused_with_keys():
    assert Web.of(Listen(cors_origins=("*",)), closed=False).origins == ("*",)
    with pytest.raises(ConfigRejected, match=r"'\*' is refused"):
        Web.of(Listen(cors_origins=("*",)), closed=True)


# A prefix


async def test_a_proxy_may_keep_its_prefix_or_remove_it():
    async with replica_with(root_path="/llm/a") as replica:
        for prefix in ("", "/llm/a"):
            assert (await replica.post(f"{prefix}{COMPLETIONS}", completion()))[0] == 200
            assert (await replica.get(f"{prefix}/v1/models/toy"))[0] == 200
        assert json.loads((await replica.get("/llm/a/openapi.json"))[1])["servers"] == [{"url": "/llm/a"}]
        assert b"/llm/a/v1/chat/completions" in (await replica.get("/llm/a/docs"))[1]
        assert (await replica.get("/llm/ab/v1/models"))[0] == 404
        counted = replica.front._server.config.loaded_app._app._counts.answered
        assert counted["/v1/completions", "POST", "2xx"] == 2


def test_only_whole_segments_are_a_prefix():
    assert [without_prefix(path, "/llm") for path in ("/llm", "/llm/", "/llm/v1", "/llmx", "/v1", "/v1/llm")] == [
        *("/", "/", "/v1", "/llmx", "/v1", "/v1/llm")
    ]


@pytest.mark.parametrize("path", ["llm", "/", "/llm/", "//llm", "/a b", "/a?b", ""])
def test_what_is_no_prefix_is_refused(path):
    with pytest.raises(ConfigRejected, match=r"listen\.rootPath"):
        Web.of(Listen(root_path=path), closed=False)


# The page


class Links(HTMLParser):
    """What a page loads, runs or points at, and where it can be pointed at."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.targets, self.ids = set(), set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            (self.ids if name == "id" else self.targets).add(value) if name in ("id", "src", "href", "action", "style") else None
            assert not name.startswith("on")


async def test_the_page_of_the_api_needs_nothing_from_elsewhere():
    async with local_replica() as replica:
        answer = await replica.send(request("GET", "/docs"))
    status, headers = headers_of(answer)
    page = answer.partition(b"\r\n\r\n")[2].decode()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = headers["content-security-policy"]
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)[1]
    assert f"style-src 'sha256-{base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    links = Links()
    links.feed(page)
    assert not links.tags & {"script", "img", "link", "iframe", "object", "form", "base"}
    assert {target.removeprefix("#") for target in links.targets} - links.ids == {"openapi.json"}
    assert {"/v1/chat/completions", "ChatRequest", "temperature"} <= set(re.findall(r"[\w/]+", page))


# TLS


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    write_pair(folder)
    return folder


def tls(folder, cert="cert.pem", key="key.pem"):
    return TlsConfig(cert_file=str(folder / cert), key_file=key and str(folder / key))


async def test_the_api_is_encrypted_with_a_certificate(pair):
    async with replica_with(tls=tls(pair)) as replica:
        trust = ssl.create_default_context(cafile=str(pair / "cert.pem"))
        reader, writer = await asyncio.open_connection(HOST, replica.ports.http, ssl=trust)
        replica.opened.append(writer)
        for stream in (False, True):
            writer.write(request("POST", COMPLETIONS, json.dumps(completion(stream=stream, max_tokens=40)).encode()))
            assert b" 200 OK" in (await read_answer(reader)).partition(b"\r\n")[0]
        assert not await replica.send(request("GET", "/version"))  # plain text is no answer
        await replica.at_rest()


async def test_a_renewed_certificate_is_used_by_new_connections_and_cuts_none(tmp_path, monkeypatch):
    monkeypatch.setattr("pagoda_daemon.api.http.tls._LOOK_EVERY_S", 0)
    async with replica_with(tls=tls(mount(tmp_path, "first"))) as replica:
        connections = []
        for version in ("first", "second"):
            if version == "second":
                mount(tmp_path, version)
            trust = ssl.create_default_context(cafile=str(tmp_path / version / "cert.pem"))
            reader, writer = await asyncio.open_connection(HOST, replica.ports.http, ssl=trust)
            replica.opened.append(writer)
            connections.append((reader, writer))
        for reader, writer in connections:
            writer.write(request("GET", "/version"))
            assert b" 200 OK" in (await read_answer(reader)).partition(b"\r\n")[0]


async def test_a_client_that_leaves_an_encrypted_stream_costs_no_more_steps(pair):
    async with replica_with(tls=tls(pair)) as replica:
        trust = ssl.create_default_context(cafile=str(pair / "cert.pem"))
        reader, writer = await asyncio.open_connection(HOST, replica.ports.http, ssl=trust)
        held = Held(6)
        replica.engine.round_trip = held.step
        writer.write(request("POST", COMPLETIONS, json.dumps(completion(stream=True, max_tokens=400, ignore_eos=True)).encode()))
        await held.reached.wait()
        await reader.readuntil(b"data: ")
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()
        await replica.until(lambda: len(replica.engine.aborted) == 1)
        held.go_on.set()
        await replica.at_rest()
        (computed,) = replica.engine.computed.values()
        assert len(computed) <= 8  # six, the one held and the one planned ahead of it


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("none.pem", "key.pem", "cannot be read: No such file"),
        ("cert.pem", None, "must be a certificate and its private key"),
        ("key.pem", "key.pem", "must be a certificate and its private key"),
        ("cert.pem", "locked.pem", "without a password"),
    ],
)
def test_files_that_are_no_certificate_are_refused_by_name(pair, cert, key, said):
    secret = ec.generate_private_key(ec.SECP256R1())
    locked = serialization.BestAvailableEncryption(b"secret")
    (pair / "locked.pem").write_bytes(secret.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(ConfigRejected, match=said) as refused:
        tls_context(tls(pair, cert, key))
    assert str(pair / cert) in str(refused.value)


async def test_a_refusal_has_the_shape_of_its_api_and_its_code_in_a_header_also_under_a_prefix():
    async with replica_with(allowed_hosts=("my-laptop",), root_path="/llm") as replica:
        status, error = await replica.post("/llm/v1/messages", {}, host="evil.example")
        assert (status, error["type"], error["error"]["type"]) == (403, "error", "permission_error")
        for path in ("/nothing", "/v1/messages/nothing", "/llm/v1/messages/nothing"):
            _, headers = headers_of(await replica.send(request("GET", path)))
            assert headers[HEADER_ERROR_CODE] == "not_found"


def test_what_the_listener_accepts_sends_an_answer_at_once_on_any_loop():
    with bind("127.0.0.1", 0, 2**16) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
