"""A small GPT in plain torch. Shapes: B batch, T time, C channels, H heads, D channels a head, V characters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        B, T, C = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = self.qkv(x_BTC).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        mixed_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        mixed_BTC: Tensor = self.out(mixed_BHTD.transpose(1, 2).reshape(B, T, C))
        return mixed_BTC


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm and beside a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.norm_1(x_BTC))
        mixed_BTC: Tensor = x_BTC + self.feed_forward(self.norm_2(x_BTC))
        return mixed_BTC


class GPT(nn.Module):
    """Character in, next character's logits out."""

    def __init__(self, *, characters: int, context: int, width: int = 96, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.04)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC = self.characters(tokens_BT) + self.places(places_T)
        logits_BTV: Tensor = self.head(self.norm(self.blocks(x_BTC)))
        return logits_BTV
