"""An attention layer that keeps its largest logit and can normalise queries and keys."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class Attention(nn.MultiheadAttention):
    """Self-attention with the same initial weights as PyTorch's."""

    def __init__(self, width: int, heads: int, *, normalised: bool) -> None:
        super().__init__(width, heads, batch_first=True)
        # If this is True, PyTorch's encoder layer computes the attention itself in evaluations.
        self._qkv_same_embed_dim = False
        self.norms = nn.ModuleList(
            nn.LayerNorm(width // heads, elementwise_affine=False) if normalised else nn.Identity() for _ in ("queries", "keys")
        )
        self.largest_logit = torch.zeros(())
        """Largest logit in the last batch that a position gave to itself or to an earlier position."""

    def forward(  # type: ignore[override]  # as the encoder layer calls it
        self, query: torch.Tensor, *_: Any, attn_mask: torch.Tensor, **__: Any
    ) -> tuple[torch.Tensor, None]:
        """Return the attended values, shape (batch, position, width); keys and values are computed from `query`."""
        projected = nn.functional.linear(query, self.in_proj_weight, self.in_proj_bias)
        heads = projected.view(*query.shape[:-1], 3, self.num_heads, self.head_dim)
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        queries, keys = self.norms[0](queries), self.norms[1](keys)
        logits = queries @ keys.transpose(-1, -2) / math.sqrt(self.head_dim) + attn_mask
        self.largest_logit = logits.detach().amax()
        attended = logits.softmax(-1) @ values
        return self.out_proj(attended.transpose(1, 2).flatten(-2)), None


def largest_logit(model: nn.Module) -> torch.Tensor | None:
    """Return the largest attention logit in the last batch; None for a model without `Attention` layers."""
    logits = [module.largest_logit for module in model.modules() if isinstance(module, Attention)]
    return torch.stack(logits).max() if logits else None
