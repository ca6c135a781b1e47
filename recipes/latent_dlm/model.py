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


class Stream(nn.Module):
    """One stream's share of a block: its modulation, its attention projections and its MLP.

    Few and fused operations: with two streams a block has twice the launches of a plain transformer's, and a GPU
    waits for the host before it is busy.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        model = config.model
        width, head = model.hidden_size, model.hidden_size // model.n_heads
        self.n_heads = model.n_heads
        # adaLN: shift, scale and gate for attention and MLP. Gates are zero at first, so that every block begins as
        # the identity, and scales are one.
        self.modulation = nn.Linear(width, 6 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        # A norm on queries and keys bounds the attention logits, which otherwise grow until a softmax overflows.
        self.norm_qk = nn.Parameter(torch.ones(2, 1, head))
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, model.mlp_hidden), nn.GELU(approximate="tanh"), nn.Linear(model.mlp_hidden, width)
        )
        self.dropout = nn.Dropout(model.dropout) if model.dropout > 0 else nn.Identity()
        nn.init.zeros_(self.modulation.weight)
        with torch.no_grad():
            self.modulation.bias.copy_(torch.tensor([0.0, 1, 0, 0, 1, 0]).repeat_interleave(width))

    def modulated(self, x_BSD: Tensor, shift_B1D: Tensor, scale_B1D: Tensor) -> Tensor:
        # All three in one dtype, or autocast widens each of them with a copy of its own.
        return torch.addcmul(shift_B1D, self.norm(x_BSD).to(shift_B1D.dtype), scale_B1D)

    def heads(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys (B, 2, H, S, K), and values (B, H, S, K)."""
        qkv = self.qkv(x_BSD).unflatten(-1, (3, self.n_heads, -1)).permute(0, 2, 3, 1, 4)
        qk, v = qkv[:, :2], qkv[:, 2]
        # In the dtype they come in: torch's own RMSNorm has no fast form for inputs and weights of two dtypes.
        return F.rms_norm(qk, qk.shape[-1:], eps=1e-6).to(v.dtype) * self.norm_qk[:, None].to(v.dtype), v


class Block(nn.Module):
    """Two streams and one attention over both."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.text = Stream(config)
        self.latent = Stream(config)

    def forward(self, x_BTD: Tensor, z_BLD: Tensor, condition_B1D: Tensor) -> tuple[Tensor, Tensor]:
        text, latent = self.text, self.latent
        of_x = text.modulation(condition_B1D).chunk(6, dim=-1)
        of_z = latent.modulation(condition_B1D).chunk(6, dim=-1)
        qk_x, v_x = text.heads(text.modulated(x_BTD, of_x[0], of_x[1]))
        qk_z, v_z = latent.heads(latent.modulated(z_BLD, of_z[0], of_z[1]))
        q_BHSK, k_BHSK = torch.cat([qk_x, qk_z], dim=3).unbind(1)
        seen_BHSK = F.scaled_dot_product_attention(q_BHSK, k_BHSK, torch.cat([v_x, v_z], dim=2))
        from_x, from_z = seen_BHSK.transpose(1, 2).flatten(2).tensor_split([x_BTD.shape[1]], dim=1)
        x_BTD = x_BTD + of_x[2] * text.dropout(text.out(from_x))
        z_BLD = z_BLD + of_z[2] * latent.dropout(latent.out(from_z))
        fed_x = text.dropout(text.mlp(text.modulated(x_BTD, of_x[3], of_x[4])))
        fed_z = latent.dropout(latent.mlp(latent.modulated(z_BLD, of_z[3], of_z[4])))
        return x_BTD + of_x[5] * fed_x, z_BLD + of_z[5] * fed_z


class MMDiT(nn.Module):
    """`model(tokens, latent, t_text, t_latent)` gives the logits of every token and what is predicted of the latent.

    Each stream has a time of its own: 0 is clean, 1 is nothing but noise. So one model is all modes at once: text from
    a latent (latent at 0), a latent from text (text at 0), or both from nothing.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.latent_tokens = config.model.hidden_size, config.model.latent_tokens
        self.embedding = nn.Embedding(config.data.vocab_size, width)
        self.place = nn.Parameter(torch.zeros(config.data.seq_len, width))
        self.read_latent = nn.Linear(config.latent.dim, self.latent_tokens * width)
        self.pool_latent = nn.Linear(config.latent.dim, width)
        self.time_text = nn.Sequential(nn.Linear(TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))
        self.time_latent = nn.Sequential(nn.Linear(TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.model.n_blocks))
        self.norm_text = nn.LayerNorm(width)
        self.norm_latent = nn.LayerNorm(width)
        self.write_latent = nn.Linear(self.latent_tokens * width, config.latent.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.place, std=0.02)
        nn.init.zeros_(self.write_latent.weight)
        nn.init.zeros_(self.write_latent.bias)

    def forward(
        self, tokens_BT: Tensor, latent_BZ: Tensor, t_text_B: Tensor, t_latent_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        x_BTD = self.embedding(tokens_BT) + self.place
        z_BLD = self.read_latent(latent_BZ).unflatten(-1, (self.latent_tokens, -1))
        # The latent is read twice: as tokens of its stream, and into the modulation of every block, learnt sooner.
        times_BD = self.time_text(time_features(t_text_B)) + self.time_latent(time_features(t_latent_B))
        condition_B1D = F.silu(times_BD + self.pool_latent(latent_BZ)).unsqueeze(1)
        for block in self.blocks:
            x_BTD, z_BLD = block(x_BTD, z_BLD, condition_B1D)
        # Tied to the embedding, which the report's vocabulary of 30,522 makes worth 31 million parameters.
        logits_BTV = F.linear(self.norm_text(x_BTD), self.embedding.weight)
        return logits_BTV, self.write_latent(self.norm_latent(z_BLD).flatten(1))


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
