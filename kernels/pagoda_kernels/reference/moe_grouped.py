"""What `gpu.moe_grouped` computes, in plain torch and float64."""

from __future__ import annotations

import torch
from torch import Tensor

from pagoda_kernels.reference.silu_mul import silu_mul


def moe_route(logits: Tensor, top_k: int, normalised: bool) -> tuple[Tensor, Tensor]:
    """Weights and numbers of each token's experts [tokens, top_k], in falling order; of equal ones the lower number first."""
    shares = logits.double().softmax(dim=-1)
    experts = logits.double().argsort(dim=-1, descending=True, stable=True)[:, :top_k]
    weights = shares.gather(1, experts)
    return (weights / weights.sum(dim=-1, keepdim=True) if normalised else weights), experts


def moe_grouped(hidden: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor, routing: tuple[int, bool]) -> Tensor:
    """Each token through its experts, one expert after another. NaN stays in its row."""
    weights, experts = moe_route(logits, *routing)
    out = torch.zeros(hidden.shape, dtype=torch.float64, device=hidden.device)
    for expert in sorted(set(experts.flatten().tolist())):
        token, rank = (experts == expert).nonzero(as_tuple=True)
        inner = silu_mul(hidden[token].double() @ gate_up[expert].double().T)
        out.index_add_(0, token, inner @ down[expert].double().T * weights[token, rank, None])
    return out
