"""What the three loops of this report share: a trainer with a text term and a latent term, and one empty mask."""

import torch
import torch.nn.functional as F
from torch import nn


class Trainer(nn.Module):
    """Text and latents from one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.text_head, self.latent_head = nn.Linear(8, 16), nn.Linear(8, 4)

    def forward(self, tokens: torch.Tensor, text_mask: torch.Tensor, latent_target: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        text_logits = self.text_head(hidden)
        text_loss = F.cross_entropy(text_logits.flatten(0, 1), tokens.flatten(), reduction="none")
        text_loss = (text_loss * text_mask.flatten()).sum() / text_mask.sum()
        latent_pred = self.latent_head(hidden.mean(1))
        latent_loss = F.mse_loss(latent_pred, latent_target)
        return text_loss + 0.1 * latent_loss


def batches() -> torch.utils.data.DataLoader:
    """Sixteen batches of four rows; the mask of rows 20 to 23 is empty."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mask = torch.ones(64, 6)
    mask[20:24] = 0
    rows = torch.utils.data.TensorDataset(torch.randint(0, 16, (64, 6)), mask, torch.randn(64, 4))
    return torch.utils.data.DataLoader(rows, batch_size=4)
