"""How many KV blocks there are and how long a context may be. Pure; called by the torch worker before it allocates."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda_contracts.launch import EngineConfig

from pagoda_daemon.errors import ConfigRejected


@dataclass(frozen=True, slots=True)
class KvShape:
    """The resolved pool."""

    blocks: int
    max_model_len: int


def kv_shape(engine: EngineConfig, token_bytes: int, max_positions: int, memory_left: int) -> KvShape:
    """`memory_left` is what remains after the weights; half of it is taken where `kv_bytes` does not say.

    A context that was asked for must fit whole; one that was not is cut to what the pool holds.
    """
    if engine.max_model_len is not None and engine.max_model_len > max_positions:
        raise ConfigRejected(f"maxModelLen {engine.max_model_len} exceeds the model's max_position_embeddings {max_positions}")
    wanted = engine.max_model_len or max_positions
    kv_bytes = memory_left // 2 if engine.kv_bytes is None else engine.kv_bytes
    block_bytes = token_bytes * engine.block_size
    full_rows = engine.max_concurrency * -(-wanted // engine.block_size)
    blocks = min(full_rows, kv_bytes // block_bytes)
    holds = blocks * engine.block_size
    if holds < (wanted if engine.max_model_len is not None else 1):
        raise ConfigRejected(
            f"maxModelLen {wanted} needs {wanted * token_bytes} bytes of KV ({token_bytes} a token), "
            f"the pool of {kv_bytes} bytes holds {holds} tokens in {blocks} blocks of {engine.block_size}"
        )
    return KvShape(blocks, min(wanted, holds))
