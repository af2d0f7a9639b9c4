"""Reads KV events off the wire: written from vLLM's format alone, sharing no type with whoever publishes them."""

from __future__ import annotations

from contextlib import contextmanager

import msgspec
import zmq

END = b"\xff" * 8


@contextmanager
def requester(context, port, **options):
    with context.socket(zmq.DEALER) as made:
        made.linger, made.rcvtimeo = 0, 300_000  # for a publisher that is stuck: a busy machine is not
        for option, value in options.items():
            setattr(made, option, value)
        made.connect(f"tcp://127.0.0.1:{port}")
        yield made


def replay(context, port, begin):
    """Every batch from there on: (sequence, what msgpack says)."""
    with requester(context, port) as asking:
        asking.send_multipart([b"", begin.to_bytes(8, "big")])
        found = []
        while True:
            empty, number, payload = asking.recv_multipart()
            assert empty == b""
            if number == END:
                assert payload == b""
                return found
            found.append((int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))


def decoded(batches):
    """Every event in order, each field where the format has it."""
    for _, batch in batches:
        stamp, events, rank = batch
        assert isinstance(stamp, float)
        assert rank == 0
        for kind, *fields in events:
            if kind == "BlockStored":
                hashes, parent, tokens, size, lora_id, medium, lora_name = fields
                assert len(tokens) == size * len(hashes)
                assert (lora_id, medium, lora_name) == (None, "GPU", None)
                assert parent is None or 0 <= parent < 2**64
                yield kind, hashes, parent, tokens
            elif kind == "BlockRemoved":
                hashes, medium = fields
                assert medium == "GPU"
                yield kind, hashes, None, None
            else:
                assert (kind, fields) == ("AllBlocksCleared", [])
                yield kind, None, None, None


def picture(batches):
    """Hash → (parent, tokens): what the cache holds by its events."""
    known = {}
    for kind, hashes, parent, tokens in decoded(batches):
        if kind == "AllBlocksCleared":
            known = {}
        elif kind == "BlockRemoved":
            for one in hashes:
                del known[one]
        else:
            size = len(tokens) // len(hashes)
            for place, (before, one) in enumerate(zip((parent, *hashes), hashes, strict=False)):
                known[one] = (before, tuple(tokens[place * size : (place + 1) * size]))
    return known


def chain_to(known, one):
    parent, tokens = known[one]
    return (chain_to(known, parent) if parent is not None else ()) + tokens
