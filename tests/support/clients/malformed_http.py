"""Bytes that are no request, or that proxies read in two ways: what any HTTP server of ours refuses with one answer and the end."""

from __future__ import annotations

from typing import Final

POST: Final = b"POST /v1/completions HTTP/1.1\r\n"
HEAD: Final = POST + b"host: x\r\n"
SMUGGLED: Final = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
_CHUNKED: Final = HEAD + b"transfer-encoding: chunked\r\n\r\n"
_TE, _CL = b"transfer-encoding: chunked\r\n", b"content-length: 4\r\n"
_LONG: Final = b"x" * 70_000
_END: Final = b"content-length: 0\r\n\r\n"

LARGE: Final = {
    "a header of 70 KB": HEAD + b"x-a: " + _LONG + b"\r\n\r\n",
    "a target of 70 KB": b"GET /" + _LONG + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "a header that never ends": HEAD + b"x-a: " + _LONG * 20,
    "80 headers of 1 KB": HEAD + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(80)) + b"\r\n",
    "1,000 headers": HEAD + b"".join(b"x-%d: y\r\n" % n for n in range(1000)) + b"\r\n",
}
CHUNK_SIZES: Final = (b"FFFFFFFFFFFFFFFF1", b"-5", b"0x5", b"5 5", b"", b"5;" + b"\n", b"+5", b"5\n")
LENGTHS: Final = (b"18446744073709551616", b"-1", b"+4", b"0x4", b"4, 4", b"4 4", b"", b"1e3", b"\xd9\xa4")
CODINGS: Final = (
    *(b"xchunked", b"identity", b"chunked, identity", b"gzip, chunked"),
    *(b"chunked\r\ntransfer-encoding: chunked", b"\x0bchunked", b""),
)
TWO_LENGTHS: Final = (
    HEAD + _CL + _TE + b"\r\n0\r\n\r\n" + SMUGGLED,
    HEAD + _TE + _CL + b"\r\n0\r\n\r\n" + SMUGGLED,
    HEAD + _CL + b"content-length: 5\r\n\r\nabcd" + SMUGGLED,
    HEAD + _CL + _CL + b"\r\nabcd" + SMUGGLED,
    HEAD + _TE + b"\r\n5\r\nhello\r\n0\r\ncontent-length: 9\r\n\r\n" + SMUGGLED,
)
HEADER_LINES: Final = (
    HEAD + b"content-length : 0\r\n\r\n",
    HEAD + b"x: a\r\n b\r\n" + _END,
    HEAD + b"x: a\rb\r\n" + _END,
    HEAD + b"x: a\0b\r\n" + _END,
    HEAD + b"x\0y: a\r\n" + _END,
    POST.replace(b"\r", b"") + b"host: x\ncontent-length: 0\n\n",
    POST + _END,
    HEAD + b"host: y\r\n" + _END,
)
NO_HTTP: Final = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.2\r\nhost: x\r\n\r\n",
    b"FOO / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET http://x:99999999/v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n",
    b"*3\r\n$3\r\nSET\r\n",
    b"\0" * 10_000,
)
CHUNK_ENDS: Final = tuple(_CHUNKED + body for body in (b"5\r\nhelloXX0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"5\nhello\r\n0\r\n\r\n"))


def chunk_sizes() -> list[bytes]:
    """Requests whose chunks have sizes that are no numbers of this machine."""
    return [_CHUNKED + size + b"\r\nhello\r\n0\r\n\r\n" for size in CHUNK_SIZES]


def codings() -> list[bytes]:
    """Requests whose transfer coding is not plainly chunked."""
    old = b"POST /v1/completions HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    return [*(HEAD + b"transfer-encoding: " + value + b"\r\n\r\n0\r\n\r\n" for value in CODINGS), old]


def lengths(body: bytes) -> list[bytes]:
    """Requests whose length is no number of this machine."""
    return [HEAD + b"content-length: " + length + b"\r\n\r\n" + body for length in LENGTHS]
