"""The MMDiT: text and latent are two streams with weights of their own that meet in one attention.

Shapes: B sentences, T text tokens, L latent tokens, S = T + L, D width, H heads, K width of a head, V vocabulary,
Z entries of a latent.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import Config

TIME_WIDTH = 256


def time_features(t_B: Tensor) -> Tensor:
    """Sines and cosines of a time in [0, 1], in float32 whatever the model computes in."""
    rates = torch.exp(torch.linspace(0.0, math.log(1000.0), TIME_WIDTH // 2, device=t_B.device))
    angles = t_B.float()[:, None] * rates * (2 * math.pi)
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def rotate(heads_BHTK: Tensor) -> Tensor:
    """Rotary positions, so that attention sees how far two words are apart."""
    length, width = heads_BHTK.shape[-2:]
    device = heads_BHTK.device
    rates = 10_000 ** -(torch.arange(0, width, 2, device=device).float() / width)
    angles_TK = torch.arange(length, device=device).float()[:, None] * rates
    cos, sin = angles_TK.cos().to(heads_BHTK.dtype), angles_TK.sin().to(heads_BHTK.dtype)
    one, two = heads_BHTK.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1)


def modulate(x_BSD: Tensor, shift_BD: Tensor, scale_BD: Tensor) -> Tensor:
    return x_BSD * (1 + scale_BD[:, None]) + shift_BD[:, None]


class HeadNorm(nn.Module):
    """RMS norm of queries or keys, in the dtype they come in: torch's own has no fast form for two dtypes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, heads_BHSK: Tensor) -> Tensor:
        return F.rms_norm(heads_BHSK, heads_BHSK.shape[-1:], eps=1e-6) * self.weight.to(heads_BHSK.dtype)


class Stream(nn.Module):
    """One stream's share of a block: its modulation, its attention projections and its MLP."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        model = config.model
        width = model.hidden_size
        self.n_heads = model.n_heads
        # adaLN: zero at first, so that every block begins as the identity.
        self.modulation = nn.Linear(width, 6 * width)
        self.norm_attention = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        # A norm on queries and keys bounds the attention logits, which otherwise grow until a softmax overflows.
        self.norm_q = HeadNorm(width // model.n_heads)
        self.norm_k = HeadNorm(width // model.n_heads)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, model.mlp_hidden), nn.GELU(approximate="tanh"), nn.Linear(model.mlp_hidden, width)
        )
        self.dropout = nn.Dropout(model.dropout)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def heads(self, x_BSD: Tensor, shift_BD: Tensor, scale_BD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(modulate(self.norm_attention(x_BSD), shift_BD, scale_BD)).chunk(3, dim=-1)
        q, k, v = (each.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for each in (q, k, v))
        # Autocast may widen a norm; attention wants one dtype.
        return self.norm_q(q).to(v.dtype), self.norm_k(k).to(v.dtype), v

    def feed(self, x_BSD: Tensor, shift_BD: Tensor, scale_BD: Tensor) -> Tensor:
        made_BSD: Tensor = self.dropout(self.mlp(modulate(self.norm_mlp(x_BSD), shift_BD, scale_BD)))
        return made_BSD


class Block(nn.Module):
    """Two streams and one attention over both."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.text = Stream(config)
        self.latent = Stream(config)

    def forward(self, x_BTD: Tensor, z_BLD: Tensor, condition_BD: Tensor) -> tuple[Tensor, Tensor]:
        of_text = self.text.modulation(condition_BD).chunk(6, dim=-1)
        of_latent = self.latent.modulation(condition_BD).chunk(6, dim=-1)
        q, k, v = self.text.heads(x_BTD, of_text[0], of_text[1])
        q_z, k_z, v_z = self.latent.heads(z_BLD, of_latent[0], of_latent[1])
        seen_BHSK = F.scaled_dot_product_attention(
            torch.cat([rotate(q), q_z], dim=2),
            torch.cat([rotate(k), k_z], dim=2),
            torch.cat([v, v_z], dim=2),
        )
        seen_BSD = seen_BHSK.transpose(1, 2).flatten(2)
        from_text, from_latent = seen_BSD.tensor_split([x_BTD.shape[1]], dim=1)
        x_BTD = x_BTD + of_text[2][:, None] * self.text.dropout(self.text.out(from_text))
        z_BLD = z_BLD + of_latent[2][:, None] * self.latent.dropout(self.latent.out(from_latent))
        x_BTD = x_BTD + of_text[5][:, None] * self.text.feed(x_BTD, of_text[3], of_text[4])
        z_BLD = z_BLD + of_latent[5][:, None] * self.latent.feed(z_BLD, of_latent[3], of_latent[4])
        return x_BTD, z_BLD


class MMDiT(nn.Module):
    """`model(tokens, latent, t_text, t_latent)` gives the logits of every token and what is predicted of the latent.

    Each stream has a time of its own: 0 is clean, 1 is nothing but noise. So one model is all modes at once: text from
    a latent (latent at 0), a latent from text (text at 0), or both from nothing.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.latent_tokens = config.model.hidden_size, config.model.latent_tokens
        self.embedding = nn.Embedding(config.data.vocab_size, width)
        self.read_latent = nn.Linear(config.latent.dim, self.latent_tokens * width)
        self.pool_latent = nn.Linear(config.latent.dim, width)
        self.time_text = nn.Sequential(nn.Linear(TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))
        self.time_latent = nn.Sequential(nn.Linear(TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.model.n_blocks))
        self.norm_text = nn.LayerNorm(width)
        self.norm_latent = nn.LayerNorm(width)
        self.write_latent = nn.Linear(self.latent_tokens * width, config.latent.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.zeros_(self.write_latent.weight)
        nn.init.zeros_(self.write_latent.bias)

    def forward(
        self, tokens_BT: Tensor, latent_BZ: Tensor, t_text_B: Tensor, t_latent_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        x_BTD = self.embedding(tokens_BT)
        z_BLD = self.read_latent(latent_BZ).unflatten(-1, (self.latent_tokens, -1))
        # The latent is read twice: as tokens of its stream, and into the modulation of every block, learnt sooner.
        times_BD = self.time_text(time_features(t_text_B)) + self.time_latent(time_features(t_latent_B))
        condition_BD = F.silu(times_BD + self.pool_latent(latent_BZ))
        for block in self.blocks:
            x_BTD, z_BLD = block(x_BTD, z_BLD, condition_BD)
        # Tied to the embedding, which the report's vocabulary of 30,522 makes worth 31 million parameters.
        logits_BTV = F.linear(self.norm_text(x_BTD), self.embedding.weight)
        return logits_BTV, self.write_latent(self.norm_latent(z_BLD).flatten(1))


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
