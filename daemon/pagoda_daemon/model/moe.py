"""A sparse layer's MLP: route each token to its experts, compute expert by expert, add up. Called by `model.decoder`.

Tokens are sorted by expert once, so each expert that is hit reads its weights once whatever the batch, and experts that are not hit
are not read. Gathering the chosen experts' weights for one batched product instead would copy them: twice the traffic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagoda_daemon.model.config import Experts
from pagoda_daemon.model.ops import gated, linear


def mix_experts(hidden: Tensor, experts: Experts, router: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """[tokens, hidden] through `router` [count, hidden], `gate_up` [count, 2 * width, hidden], `down` [count, hidden, width]."""
    weights, chosen = route(linear(hidden, router), experts)
    if hidden.shape[0] == 1:
        return _one_token(hidden, weights, chosen[0].tolist(), gate_up, down)
    order = chosen.flatten().argsort(stable=True)
    sorted_in = hidden.index_select(0, order // experts.per_token)
    outputs = torch.empty_like(sorted_in)
    start = 0
    for expert, count in enumerate(chosen.flatten().bincount(minlength=experts.count).tolist()):
        if count:
            part = slice(start, start + count)
            outputs[part] = linear(gated(linear(sorted_in[part], gate_up[expert])), down[expert])
            start += count
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=order.device))
    by_token = outputs.index_select(0, back).view(*chosen.shape, hidden.shape[-1])
    return _weighted(by_token, weights).to(hidden.dtype)


def route(logits: Tensor, experts: Experts) -> tuple[Tensor, Tensor]:
    """Weights in fp32 and numbers of each token's experts, [tokens, per_token] each."""
    weights, chosen = logits.float().softmax(dim=-1).topk(experts.per_token, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if experts.normalised else weights), chosen


def _one_token(hidden: Tensor, weights: Tensor, chosen: list[int], gate_up: Tensor, down: Tensor) -> Tensor:
    """The same without sorting: a decode step of one row would spend half its time on it."""
    outputs = torch.stack([linear(gated(linear(hidden, gate_up[expert])), down[expert]) for expert in chosen], dim=1)
    return _weighted(outputs, weights).to(hidden.dtype)


def _weighted(outputs: Tensor, weights: Tensor) -> Tensor:
    """Sum of [tokens, per_token, hidden] by `weights`, in fp32."""
    return (outputs.float() * weights.unsqueeze(-1)).sum(dim=1)
