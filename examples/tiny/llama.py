"""A Llama in plain torch, just what training the example needs: parameter names and rotation are those of a Hugging Face checkpoint.

Used by `learn.py` and `checkpoint.py`. Serves nothing: no cache, no sampling. Own code because importing transformers took 7 s of the
demo's time; tests/parity proves that transformers reads the result and says the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; grouped-query attention and tied embeddings, as small Llamas have them."""

    vocab: int
    hidden: int = 192
    intermediate: int = 512
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    positions: int = 1024
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads


class Attention(nn.Module):
    """Causal, grouped-query."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.k_proj = nn.Linear(shape.hidden, kv, bias=False)
        self.v_proj = nn.Linear(shape.hidden, kv, bias=False)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """x: [batch, length, hidden]."""
        q = rotate(self._heads(self.q_proj(x)), rope)
        k = rotate(self._heads(self.k_proj(x)), rope)
        v = self._heads(self.v_proj(x))
        group = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, width // self.shape.head_dim, self.shape.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, length, hidden]."""
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class Layer(nn.Module):
    """Attention and MLP, each behind its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """x: [batch, length, hidden]."""
        x = x + self.self_attn(self.input_layernorm(x), rope)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Body(nn.Module):
    """Everything under the `model.` prefix of a checkpoint."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.norm_eps)


class Llama(nn.Module):
    """Token ids to hidden states, hidden states to logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, length] ids to [batch, length, hidden]."""
        x = self.model.embed_tokens(tokens)
        rope = rotations(self.shape, tokens.shape[1], x.dtype)
        for layer in self.model.layers:
            x = layer(x, rope)
        normed: Tensor = self.model.norm(x)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Apart from `forward`, so that training pays the vocabulary only at the answers' positions."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def rotations(shape: Shape, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine, [length, head_dim], each half of a head turning by the same angles."""
    steps = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.arange(length, dtype=torch.float32)[:, None] * shape.rope_theta**-steps
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, Hugging Face's layout: halves, not pairs."""
    cos, sin = rope
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin
