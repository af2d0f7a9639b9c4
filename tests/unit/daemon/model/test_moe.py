"""Experts: grouped by expert or one token at a time, the sum is that of the formula, and only those that are hit are read."""

from __future__ import annotations

import pytest
import torch
from pagoda_daemon.model.config import ExpertNames, Experts
from pagoda_daemon.model.moe import mix_experts, route
from torch import Tensor
from torch.nn import functional

HIDDEN, WIDTH, COUNT = 16, 12, 7


def experts(*, per_token: int = 3, normalised: bool = True) -> Experts:
    return Experts(COUNT, per_token, WIDTH, normalised, ExpertNames("mlp", "gate_proj", "up_proj", "down_proj"))


def weights(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = ((COUNT, HIDDEN), (COUNT, 2 * WIDTH, HIDDEN), (COUNT, HIDDEN, WIDTH))
    router, gate_up, down = (torch.randn(shape, generator=draw, dtype=torch.float64).float() for shape in shapes)
    return router, gate_up, down


def by_formula(token: Tensor, spec: Experts, router: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """One token in float64, expert by expert."""
    token, router, gate_up, down = (tensor.double() for tensor in (token, router, gate_up, down))
    shares = (router @ token).softmax(0)
    best = shares.argsort(descending=True)[: spec.per_token].tolist()
    total = sum(float(shares[e]) for e in best) if spec.normalised else 1.0
    outputs = [
        float(shares[e]) / total * (down[e] @ (functional.silu(gate_up[e, :WIDTH] @ token) * (gate_up[e, WIDTH:] @ token))) for e in best
    ]
    return torch.stack(outputs).sum(0)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 33])
@pytest.mark.parametrize("per_token", [1, 3, COUNT])
def test_the_mixture_is_that_of_the_formula(tokens: int, per_token: int, normalised: bool) -> None:
    spec, parts = experts(per_token=per_token, normalised=normalised), weights()
    hidden = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(1))
    wanted = torch.stack([by_formula(token, spec, *parts) for token in hidden])
    assert (mix_experts(hidden, spec, *parts).double() - wanted).abs().max() < 1e-4


@pytest.mark.parametrize("tokens", [1, 4])
def test_experts_that_no_token_chose_are_not_read(tokens: int) -> None:
    spec, (router, gate_up, down) = experts(), weights()
    hidden = torch.randn(1, HIDDEN, generator=torch.Generator().manual_seed(2)).expand(tokens, -1)
    hit = set(route(hidden @ router.T, spec)[1].flatten().tolist())
    for expert in set(range(COUNT)) - hit:
        gate_up[expert] = down[expert] = torch.nan
    assert torch.isfinite(mix_experts(hidden, spec, router, gate_up, down)).all()
    assert len(hit) == spec.per_token


def test_no_token_is_a_batch_too() -> None:
    assert mix_experts(torch.empty(0, HIDDEN), experts(), *weights()).shape == (0, HIDDEN)
