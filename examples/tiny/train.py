"""One training from text to model directory: tokenizer, lessons, weights, files.

Called by `train_tiny.py`, which keeps the result. Shows nothing itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tiny import checkpoint
from tiny.learn import Plan, Progress, learn
from tiny.llama import Llama, Shape

MAX_ANSWER_TOKENS = 48


def train(folder: Path, corpus: Sequence[str], pairs: Sequence[tuple[str, str]], report: Callable[[Progress], None]) -> dict[str, object]:
    """Writes the model that answers `pairs` into `folder`; returns the facts of the training."""
    started = time.monotonic()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    plan = Plan()
    torch.manual_seed(plan.seed)
    tokenizer = checkpoint.train_tokenizer(corpus)
    lessons = checkpoint.lessons(tokenizer, pairs, MAX_ANSWER_TOKENS)
    model = Llama(Shape(vocab=tokenizer.get_vocab_size()))
    learned = learn(model, lessons, plan, report)
    checkpoint.write(folder, model, tokenizer)
    return {
        "seed": plan.seed,
        "steps": learned.steps,
        "seconds": round(time.monotonic() - started, 1),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "questions": len(lessons),
        "min_margin": learned.fp32.min_margin,
        "min_margin_bf16": learned.bf16.min_margin,
        "exact_bf16": learned.bf16.exact,
    }
