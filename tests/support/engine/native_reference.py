"""Random decoders of any shape, in C++ and in fp32 torch with the same bf16 weights: the torch one is the judge of the native one."""

from dataclasses import replace

import numpy as np
import torch
from pagoda_daemon.core.batch import StepPlan
from pagoda_daemon.model.attention import KvCache, attention_batch
from pagoda_daemon.model.config import parse_spec
from pagoda_daemon.model.decoder import Decoder, Flat
from pagoda_daemon.model.lowrank import adapted
from pagoda_daemon.model.packed import Packer
from pagoda_daemon.model.weights import allocate, destinations
from pagoda_kernels.cpu.native import Batch, NativeDecoder

BLOCKS = 64
POSITIONS = 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "tie_word_embeddings": False,
}
BASE = parse_spec(CONFIG)


def shape(**changes):
    """The small decoder with some sizes changed."""
    return replace(BASE, **changes)


def weights_of(spec, seed=0):
    """Random bf16 weights; large enough that attention and activations do something."""
    weights = allocate(spec, torch.bfloat16)
    random = torch.Generator().manual_seed(seed)
    for name, place in destinations(spec, weights).items():
        values = torch.randn(place.shape, generator=random)
        # Norms aside, variance-preserving: what a trained matrix does to its input's size.
        place.copy_(1 + 0.2 * values if "norm" in name else values * place.shape[-1] ** -0.5)
    return weights


def native(spec, seed=0, kind=0, threads=2, wide_rows=0):
    """A fresh native decoder with empty pages."""
    weights = weights_of(spec, seed)
    packer = Packer(spec, weights, kind)
    for name in destinations(spec, weights):
        packer.filled(name)
    return NativeDecoder(packer.decoder(POSITIONS, wide_rows), BLOCKS, threads)


class Judge:
    """The same decoder in fp32 torch."""

    def __init__(self, spec, seed=0):
        self._spec = spec
        weights, bf16 = allocate(spec, torch.float32), weights_of(spec, seed)
        for name, place in destinations(spec, weights).items():
            place.copy_(destinations(spec, bf16)[name])
        self._decoder = Decoder(spec, weights, POSITIONS)
        self._kv = KvCache(spec, BLOCKS, 16, torch.float32)

    def logits(self, ids, table, adapter=None):
        """Of every one of one row's `ids` from position 0, with an adapter of fp32 matrices."""
        count = len(ids)
        plan = StepPlan(
            step=0,
            rows=np.zeros(1, np.int32),
            starts=np.array([0, count], np.int32),
            token_ids=np.asarray(ids, np.int32),
            positions=np.arange(count, dtype=np.int32),
            block_tables=np.asarray([table], np.int32),
            sample=np.ones(1, np.bool_),
        )
        changed = None if adapter is None else adapted(np.ones(count, np.int32), {1: adapter}, torch.device("cpu"))
        flat = Flat(
            token_ids=torch.from_numpy(plan.token_ids.astype(np.int64)),
            positions=torch.from_numpy(plan.positions.astype(np.int64)),
            wanted=torch.arange(count),
            attention=attention_batch(plan, self._kv, self._spec),
            adapted=changed,
            adapted_wanted=changed,
        )
        with torch.inference_mode():
            return self._decoder.logits(flat, self._kv).numpy()


def batch(pieces, tables):
    """Tokens of several rows: `pieces` are (row, ids, first position); every token's logits are wanted."""
    counts = [len(ids) for _, ids, _ in pieces]
    return Batch(
        ids=np.concatenate([np.asarray(ids, np.int32) for _, ids, _ in pieces]),
        positions=np.concatenate([np.arange(first, first + len(ids), dtype=np.int32) for _, ids, first in pieces]),
        rows=np.repeat(np.asarray([row for row, _, _ in pieces], np.int32), counts),
        tables=np.ascontiguousarray(tables, np.int32),
        wanted=np.arange(sum(counts), dtype=np.int32),
    )
