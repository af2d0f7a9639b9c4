"""TLS of the API's port: a renewed Secret is used by new connections, none that is open is cut, and a bad one changes nothing."""

import asyncio
import ssl
from contextlib import asynccontextmanager, suppress

import grpc
import grpc.aio
import pytest
from aiohttp import web
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from pagoda_contracts.names import GRPC_HEALTH_CHECK
from pagoda_gateway.extproc.server import ExtProcServer
from pagoda_gateway.proxy.connection import Bounds
from pagoda_gateway.proxy.listener import listening
from pagoda_gateway.serve.tls import grpc_credentials, tls_context
from support.servers.certificates import CERT, KEY, mount, write_pair


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@asynccontextmanager
async def served(folder, clock):
    """The port of a server that echoes bodies."""

    async def echo(request):
        return web.Response(body=await request.read())

    app = web.Application()
    app.router.add_post("/", echo)
    async with listening(app, "127.0.0.1", 0, tls_context(folder / CERT, folder / KEY, clock), Bounds()) as listener:
        client = Client(listener.port)
        yield client
        await client.close()


class Client:
    """Opens connections, and closes all of them in the end."""

    def __init__(self, port):
        self.port, self._writers = port, []

    async def connected(self, tls=True):
        """A connection and the name in the certificate that it was shown."""
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=trusting if tls else None)
        self._writers.append(writer)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) if tls else b"first"
        return reader, writer, next(name for name in ("first", "second", "third") if name.encode() in der)

    async def close(self):
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()


async def ask(reader, writer, body=b"hello"):
    writer.write(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 200 ") and await reader.readexactly(len(body)) == body


async def test_a_renewed_certificate_is_used_by_new_connections_and_cuts_none(tmp_path):
    clock = Clock()
    async with served(mount(tmp_path, "first"), clock) as client, asyncio.timeout(120):
        old = await client.connected()
        assert old[2] == "first"
        mount(tmp_path, "second")
        assert (await client.connected())[2] == "first"  # it looks once a second
        clock.now += 1
        new = await client.connected()
        assert new[2] == "second"
        for reader, writer, _ in (old, new):
            assert await ask(reader, writer)


async def test_files_that_do_not_fit_together_leave_the_last_pair_in_use(tmp_path):
    clock = Clock()
    write_pair(tmp_path, "first")
    async with served(tmp_path, clock) as client, asyncio.timeout(120):
        certificate = (tmp_path / CERT).read_bytes()
        write_pair(tmp_path, "second")
        (tmp_path / CERT).write_bytes(certificate)
        clock.now += 1
        assert (await client.connected())[2] == "first"
        (tmp_path / KEY).unlink()
        clock.now += 1
        assert (await client.connected())[2] == "first"
        write_pair(tmp_path, "third")
        clock.now += 1
        assert (await client.connected())[2] == "third"


def test_files_that_cannot_be_used_end_the_start_and_are_named(tmp_path):
    write_pair(tmp_path)
    with pytest.raises(ValueError, match=f"{KEY} and .* must be a certificate and its private key in PEM, without a password"):
        tls_context(tmp_path / KEY, tmp_path / KEY)
    with pytest.raises(FileNotFoundError):
        tls_context(tmp_path / "none.pem", tmp_path / KEY)


async def test_envoys_port_uses_a_renewed_certificate_for_new_connections_and_keeps_the_last_good_pair(tmp_path):
    clock = Clock()
    server = ExtProcServer(None, None, lambda: True)
    port = await server.start("127.0.0.1:0", grpc_credentials(mount(tmp_path, "first") / CERT, tmp_path / KEY, clock))

    async def serving(channel):
        check = channel.unary_unary(
            GRPC_HEALTH_CHECK, request_serializer=HealthCheckRequest.SerializeToString, response_deserializer=HealthCheckResponse.FromString
        )
        try:
            return (await check(HealthCheckRequest())).status == HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError as error:
            return error.code()

    def trusting(name):
        return grpc.aio.secure_channel(f"127.0.0.1:{port}", grpc.ssl_channel_credentials((tmp_path / name / CERT).read_bytes()))

    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as plain, trusting("first") as first, asyncio.timeout(120):
            assert [await serving(channel) for channel in (plain, first)] == [grpc.StatusCode.UNAVAILABLE, True]
            mount(tmp_path, "second")
            clock.now += 1
            async with trusting("second") as second:
                assert [await serving(channel) for channel in (first, second)] == [True, True]
            (tmp_path / "second" / KEY).unlink()
            clock.now += 1
            async with trusting("second") as second:
                assert await serving(second) is True
    finally:
        await server.stop(0)


async def test_a_handshake_that_does_not_end_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("pagoda_gateway.proxy.listener._HANDSHAKE_S", 0.05)
    write_pair(tmp_path)
    async with served(tmp_path, Clock()) as client, asyncio.timeout(120):
        reader, _, _ = await client.connected(tls=False)
        assert await reader.read() == b""
