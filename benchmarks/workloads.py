"""The models the overhead is measured on: plain GPTs from host-bound to device-bound.

Shapes: B batch, T tokens, D width, H heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class Workload:
    width: int
    heads: int
    layers: int
    vocabulary: int
    tokens: int
    batch: int


WORKLOADS = {
    "gpt_1300m": Workload(2048, 16, 24, 50304, 1024, 4),
    "gpt2_124m": Workload(768, 12, 12, 50304, 1024, 16),
    "small_10m": Workload(256, 8, 6, 8192, 256, 16),
    "cpu_small": Workload(128, 4, 4, 2048, 128, 4),
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(self.norm1(x_BTD)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(attended.transpose(1, 2).reshape(B, T, D))
        return x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))


class GPT(nn.Module):
    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(work.vocabulary, work.width), nn.Embedding(work.tokens, work.width)
        self.blocks = nn.ModuleList(Block(work.width, work.heads) for _ in range(work.layers))
        self.norm, self.head = nn.LayerNorm(work.width), nn.Linear(work.width, work.vocabulary, bias=False)

    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        x = self.token(ids_BT) + self.position(torch.arange(ids_BT.shape[1], device=ids_BT.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(work: Workload, device: str) -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """Model, fused AdamW and one batch of token ids, from a fixed seed."""
    torch.manual_seed(0)
    model = GPT(work).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, work.vocabulary, (work.batch, work.tokens + 1), device=device)
    return model, optimizer, ids


def loss_of(model: nn.Module, ids: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    with torch.autocast(ids.device.type, dtype=dtype):
        logits = model(ids[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
