"""The CPU's native ops against PyTorch, in turn (A B A B), on random weights. Prints JSON.

`python -P bench/native.py [--models dense,qwen3-moe,mixtral] [--rounds 2] [--layers 4]`. `dense` has layers of a 1.1 B model. The experts
have the sizes of Qwen3-30B-A3B and of half a Mixtral 8x7B; there are fewer of them. PyTorch computes with blocks of 32 tokens, which the
native ops have not. CPU time is counted too: the clock of a busy machine says little.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent / "common"))

from engine_models import CONTEXT, write_model
from local_engine import Ours
from pagoda_kernels.cpu.choice import chosen

VOCAB: Final = 8192
SHARED: Final = {
    "vocab_size": VOCAB,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "dense": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "intermediate_size": 5632, **SHARED},
    "qwen3-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 4,
        "intermediate_size": 768,
        "moe_intermediate_size": 768,
        "num_experts": 32,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        **SHARED,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "num_hidden_layers": 2,
        "intermediate_size": 7168,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        **SHARED,
    },
}
# Requests at once, tokens in, tokens out.
POINTS: Final = {"n=1": (1, 32, 48), "n=16": (16, 32, 32), "prompt": (1, 448, 1)}
ENGINES: Final[dict[str, dict[str, Any]]] = {"native": {}, "torch": {"blockSize": 32}}


def measure(config: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Both on one model."""
    with tempfile.TemporaryDirectory(prefix="pagoda-bench-") as folder:
        write_model(config, Path(folder))
        engines = {name: Ours(Path(folder), None, **more) for name, more in ENGINES.items()}
        found = {point: compare(engines, asked, rounds) for point, asked in POINTS.items()}
        profile = engines["native"].profile()
        for engine in engines.values():
            engine.close()
    return {**found, "profile": profile}


def compare(engines: dict[str, Ours], asked: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    rows, into, out = asked
    runs: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for round_ in range(rounds + 1):
        for name, engine in engines.items():
            before = cpu_s()
            run = engine.run([[random.randrange(3, VOCAB) for _ in range(into)] for _ in range(rows)], out)
            tokens = run.tokens if out > 1 else into
            if round_:  # the first run of anything pays for its caches
                runs[name].append((tokens / (run.tokens / run.tokens_per_s), tokens / (cpu_s() - before)))
    by_clock, by_cpu = ({name: [round(one[at], 1) for one in found] for name, found in runs.items()} for at in (0, 1))
    ratios = (statistics.median(found["native"]) / statistics.median(found["torch"]) for found in (by_clock, by_cpu))
    return {"tokens_per_s": by_clock, "tokens_per_cpu_s": by_cpu, "ratios": [round(ratio, 2) for ratio in ratios]}


def instructions() -> str | None:
    """Without them a figure means nothing."""
    variant = chosen()
    return variant.instructions if variant else None


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layers", type=int, default=None, help="fewer or more than each model has here")
    arguments = parser.parse_args()
    random.seed(0)
    for name in arguments.models.split(","):
        config = MODELS[name] | ({"num_hidden_layers": arguments.layers} if arguments.layers else {})
        print(json.dumps({"model": name, "instructions": instructions(), **measure(config, arguments.rounds)}), flush=True)


if __name__ == "__main__":
    main()
