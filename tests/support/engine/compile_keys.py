"""Which kernels steps of a GPU's worker ask the compiler for, without a GPU and without compiling: a process of its own, as Triton must not
interpret. Prints JSON. Called by tests/unit/daemon/gpu/test_late_compilations.py."""

import json
import sys
from dataclasses import replace

import numpy as np
import torch
from pagoda_contracts.launch import AdaptersConfig, EngineConfig
from pagoda_daemon.core.batch import LAST_SAMPLED, SamplingRows, StepPlan, WorkerLimits
from pagoda_daemon.core.sampling import Sampling, draw_of
from pagoda_daemon.gpu.load import compile_all, take_adapters, warm_worker
from pagoda_daemon.model.config import FAMILIES, Experts
from pagoda_daemon.model.quantised import FORMATS
from pagoda_daemon.model.weights import allocate, destinations, with_linears
from support.engine.native_reference import shape
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

BLOCKS, BLOCK, POSITIONS, ROWS = 96, 16, 512, 8
SHAPES = {
    "norms": {"qk_norm": True, "tied": True, "vocab_size": 129},
    "windows": {"windows": (None, 40), "vocab_size": 5000},
    "blocks by descriptors": {"head_dim": 64},
    "experts": {
        "experts": Experts(count=4, per_token=2, intermediate=48, normalised=True, names=FAMILIES["Qwen3MoeForCausalLM"].experts),
        "sparse": (True, True),
    },
    "fp8": {},
    "int8": {"hidden": 128},
    "adapters": {},
    "keys and values in int8": {},
    "keys and values in float8": {"windows": (None, 40)},
}


STEPS = ([1], [1] * 3, [1] * 8, [2], [16], [17], [33], [64], [257], [1, 1, 16], [1, 31, 7], [1, 1, 1, 1, 5], [5, 1], [300, 40, 1])
DRAWN = (None, {}, {"temperature": 1.0}, {"temperature": 0.5, "top_k": 3}, {"temperature": 0.5, "top_p": 0.5, "min_p": 0.1})


class Hopper:
    """What Triton asks of a driver before it compiles."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, _device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


class Asked:
    """The binaries asked for; none is made, and nothing is launched."""

    def __init__(self):
        self.seen = set()
        self.late = []
        self.warm = False

    def __call__(self, *, key, fn, **_told):
        if (fn.name, key) not in self.seen:
            self.seen.add((fn.name, key))
            if self.warm:
                self.late.append(fn.name)
        return True


def plans(vocab, adapters=False):
    """Steps of every kind: of one row and many, of one token and many, decodes, prompts and both, copies, and all ways to draw."""
    random = np.random.default_rng(1)
    for counts in STEPS:
        for sampling in DRAWN if counts == [1] * 3 else DRAWN[::4]:
            found = plan(random, vocab, counts, sampling)
            yield found if not adapters else replace(found, adapters=random.integers(0, 3, found.rows.size).astype(np.int32))


def plan(random, vocab, counts, sampling):
    fed = random.integers(0, 100, len(counts)) if max(counts) == 1 else np.zeros(len(counts), np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    positions = np.concatenate([first + np.arange(count) for first, count in zip(fed, counts, strict=True)]).astype(np.int32)
    width = -(-int(positions.max() + 1) // BLOCK) + int(random.integers(0, 3))
    ids = random.integers(0, vocab, positions.size).astype(np.int32)
    ids[: 1 if counts[0] == 1 else 0] = LAST_SAMPLED
    rows = np.arange(len(counts), dtype=np.int32)
    tables = random.integers(0, BLOCKS, (rows.size, width)).astype(np.int32)
    copies = random.permutation(BLOCKS)[: 2 * int(random.integers(0, 4))].astype(np.int32).reshape(-1, 2)
    sample = rows >= int(random.integers(0, rows.size))
    drawn = None if sampling is None else np.stack([draw_of(Sampling(1, **sampling), 3)] * int(sample.sum()))
    more = {} if drawn is None else {"sampling": SamplingRows(random=drawn)}
    return StepPlan(1, rows, starts, ids, positions, tables, sample, copies=copies, **more)


def worker_of(name, place):
    """As loading makes it. Nobody looks at its tokens."""
    changes = SHAPES[name]
    spec = shape(**changes)
    with place:
        weights = allocate(spec, torch.bfloat16)
    for part in destinations(spec, weights).values():
        part.zero_()
    if name in FORMATS:
        weights = replace(weights, layers=tuple(with_linears(layer, FORMATS[name].make) for layer in weights.layers))
    limits = WorkerLimits(BLOCKS, 64 if "head_dim" in changes else BLOCK, spec.vocab_size, POSITIONS)
    kept = name.removeprefix("keys and values in ")
    engine = EngineConfig(max_concurrency=ROWS, token_budget=POSITIONS, kv_dtype=None if kept == name else kept)
    worker = warm_worker(spec, weights, engine, limits, lambda _share: None)
    if name == "adapters":
        take_adapters(worker, AdaptersConfig(max_loaded=2, max_rank=20), lambda _share: None)
    return worker


def late(name):
    asked = knobs.runtime.jit_cache_hook = Asked()
    worker = worker_of(name, torch.device("cpu"))
    compile_all(worker, POSITIONS)  # as on a GPU
    before, asked.warm = len(asked.seen), True
    for one in plans(worker.limits.vocab_size, name == "adapters"):
        worker.execute(one)
    return {"warm": before, "late": sorted(asked.late)}


if __name__ == "__main__":
    driver.set_active(Hopper())
    json.dump({name: late(name) for name in SHAPES}, sys.stdout)
