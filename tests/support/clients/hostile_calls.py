"""gRPC calls that mean harm, from a seed: every method that there is, every field of Generate with every wrong value, broken messages."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pagoda_contracts.names import GRPC_GENERATE
from pagoda_contracts.pb import inference_pb2 as pb
from pagoda_daemon.api.access.roles import METHODS
from support.servers.replica import NAME, PATIENCE_S

NUMBERS: Final = (0, 1, -1, 2, 127, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 1.5, -1e308, 1e-320, float("nan"), float("inf"))
TEXTS: Final = ("", " ", "\0", "a" * 5000, "../../etc/passwd", "\U0001f4a9", "'; --")
BYTES: Final = (b"", b"\0" * 16, b"\xff" * 5000)
# What a call that a client has spoilt may end with; INTERNAL and UNKNOWN say that the fault is ours.
CLIENTS: Final = frozenset(
    (
        *(grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED),
        *(grpc.StatusCode.NOT_FOUND, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED),
    )
)


def plain() -> pb.GenerateRequest:
    return pb.GenerateRequest(model=NAME, prompt_tokens=[1, 2, 3], sampling=pb.Sampling(max_tokens=2, ignore_eos=True))


def calls(others: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Method and message."""
    luck = random.Random(seed)
    yield GRPC_GENERATE, plain().SerializeToString()
    yield from ((method, luck.randbytes(40)) for method in METHODS)
    for field, wrong in pairs():
        message = plain()
        holder = message.sampling if field.containing_type.name == "Sampling" else message
        if put(holder, field, wrong):
            yield GRPC_GENERATE, message.SerializeToString()
    for _ in range(others):
        yield luck.choice((GRPC_GENERATE, *METHODS)), broken(luck)


def pairs() -> list[tuple[FieldDescriptor, Any]]:
    fields = [*pb.GenerateRequest.DESCRIPTOR.fields, *pb.Sampling.DESCRIPTOR.fields]
    return [(field, wrong) for field in fields for wrong in (*NUMBERS, *TEXTS, *BYTES)]


def put(holder: Message, field: FieldDescriptor, wrong: Any) -> bool:
    """False where a message of this type cannot say it."""
    with suppress(TypeError, ValueError, AttributeError, OverflowError):
        if isinstance(getattr(holder, field.name), str | bytes | int | float):
            setattr(holder, field.name, wrong)
        else:
            getattr(holder, field.name).extend([wrong] * 3)
        return True
    return False


def broken(luck: random.Random) -> bytes:
    message = bytearray(plain().SerializeToString())
    for _ in range(luck.randrange(1, 5)):
        message[luck.randrange(len(message))] = luck.randrange(256)
    return bytes(message[: luck.randrange(len(message) + 1)])


async def attack(address: str, others: int, seed: int) -> tuple[Counter[str], list[Any]]:
    """How each call ended, and those that ended by a fault of ours."""
    ends, wrong = Counter[str](), []
    async with grpc.aio.insecure_channel(address) as channel:
        for method, message in calls(others, seed):
            code, said = await _end(channel, method, message)
            ends[code.name] += 1
            failed = said.failed if said is not None else pb.Failed()
            if code not in CLIENTS or failed.code in ("internal_error", "engine_died"):
                wrong.append((method, message, code, failed))
    return ends, wrong


async def _end(channel: Any, method: str, message: bytes) -> tuple[grpc.StatusCode, pb.GenerateResponse | None]:
    """Of Generate all that it says; of what watches for ever the first word."""
    call = channel.unary_stream(method)(message, timeout=PATIENCE_S)
    last = None
    try:
        while (event := await call.read()) is not grpc.aio.EOF:
            if method != GRPC_GENERATE:
                call.cancel()
                return grpc.StatusCode.OK, None
            last = pb.GenerateResponse.FromString(event)
        return await call.code(), last
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        return await call.code(), last
