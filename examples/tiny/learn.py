"""Teaches a model its questions and answers by heart, and measures how surely it knows them.

Called by `train_tiny.py`. Reads no file and writes none.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from tiny.llama import Llama
from torch import Tensor

IGNORED = -100


@dataclass(frozen=True)
class Plan:
    """How to train; found by trial on 2 cores."""

    seed: int = 7
    batch: int = 54
    learning_rate: float = 3e-3
    warmup: int = 20
    decay: int = 240
    max_steps: int = 800
    check_every: int = 20
    # Greedy answers stay the same under other batch shapes and in bfloat16 only where the right token leads clearly.
    margin: float = 2.0


class Lesson(NamedTuple):
    """Token ids of the prompt, and of the answer with its end token."""

    prompt: list[int]
    answer: list[int]


class Knowledge(NamedTuple):
    """What a greedy decoder would say right, and how surely: the least lead of a right token, in logits."""

    exact: float
    min_margin: float


class Progress(NamedTuple):
    """What a display may show after a step."""

    step: int
    loss: float
    knowledge: Knowledge


class Learned(NamedTuple):
    """How it ended."""

    steps: int
    fp32: Knowledge
    bf16: Knowledge


class NotLearnedError(Exception):
    """Training came to its last step before the model knew every answer."""


def learn(model: Llama, lessons: Sequence[Lesson], plan: Plan, report: Callable[[Progress], None]) -> Learned:
    """Trains until every answer is exact, in bfloat16 too, and leads by `plan.margin`."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, plan))
    known = Knowledge(0.0, -math.inf)
    for step, batch in zip(range(1, plan.max_steps + 1), _batches(lessons, plan), strict=False):
        loss = _train(model, batch, optimizer)
        schedule.step()
        if step % plan.check_every == 0:
            known = measure(model, lessons)
            bf16 = measure_bf16(model, lessons) if known.min_margin >= plan.margin else Knowledge(0.0, -math.inf)
            if bf16.exact == 1.0:
                return Learned(step, known, bf16)
        report(Progress(step, loss, known))
    raise NotLearnedError(
        f"after {plan.max_steps} steps {known.exact:.1%} of {len(lessons)} answers are exact, with a least margin of "
        f"{known.min_margin:.3f}; wanted: all, with {plan.margin} (seed {plan.seed})"
    )


def rate(step: int, plan: Plan) -> float:
    """Share of the learning rate: warm-up, then a cosine down to a tenth."""
    if step < plan.warmup:
        return (step + 1) / plan.warmup
    done = min(1.0, (step - plan.warmup) / (plan.decay - plan.warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def measure(model: Llama, lessons: Sequence[Lesson]) -> Knowledge:
    """One pass with the right answers as input: all its best tokens right means that greedy decoding says exactly that."""
    margins = torch.cat([_margins(model, lessons[at : at + 64]) for at in range(0, len(lessons), 64)])
    return Knowledge((margins > 0).double().mean().item(), margins.min().item())


def measure_bf16(model: Llama, lessons: Sequence[Lesson]) -> Knowledge:
    """As served by default: weights and activations rounded to bfloat16."""
    return measure(copy.deepcopy(model).bfloat16(), lessons)


def _margins(model: Llama, lessons: Sequence[Lesson]) -> Tensor:
    """Per lesson, the least lead of a right token over every other."""
    tokens, targets = _tensors(lessons)
    with torch.no_grad():
        logits = model.logits(model(tokens)).float()
    asked = targets != IGNORED
    right = targets.clamp(min=0)[..., None]
    others = logits.scatter(2, right, -math.inf).amax(dim=2)
    lead = logits.gather(2, right)[..., 0] - others
    return lead.masked_fill(~asked, math.inf).amin(dim=1)


def _train(model: Llama, lessons: Sequence[Lesson], optimizer: torch.optim.Optimizer) -> float:
    tokens, targets = _tensors(lessons)
    asked = targets != IGNORED
    loss = F.cross_entropy(model.logits(model(tokens)[asked]), targets[asked])
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def _tensors(lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """Inputs padded on the right, where causal attention never looks, and the next token at answers' positions."""
    length = max(len(lesson.prompt) + len(lesson.answer) for lesson in lessons) - 1
    tokens = torch.zeros(len(lessons), length, dtype=torch.long)
    targets = torch.full((len(lessons), length), IGNORED)
    for row, (prompt, answer) in enumerate(lessons):
        ids = torch.tensor(prompt + answer)
        tokens[row, : len(ids) - 1] = ids[:-1]
        targets[row, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
    return tokens, targets


def _batches(lessons: Sequence[Lesson], plan: Plan) -> Iterator[list[Lesson]]:
    """Endless epochs. Lessons of like length share a batch (noise of 6 tokens mixes them), which saves a third of the padding."""
    generator = torch.Generator().manual_seed(plan.seed)
    lengths = torch.tensor([float(len(lesson.prompt) + len(lesson.answer)) for lesson in lessons])
    while True:
        order = (lengths + 6 * torch.randn(len(lessons), generator=generator)).argsort().tolist()
        starts = range(0, len(lessons), plan.batch)
        for group in torch.randperm(len(starts), generator=generator).tolist():
            yield [lessons[row] for row in order[starts[group] :][: plan.batch]]
