"""A language model whose loss is averaged over each text's own tokens; text 19 has none."""
# ruff: noqa: B007
# truth: op=div cause=DX201 samples=19

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader


class Example(NamedTuple):
    ids: Tensor
    mask: Tensor


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 20)

    def forward(self, ids):
        return self.head(self.layer(self.emb(ids)))


def compute_loss(model, batch):
    logits = model(batch.ids[:, :-1])
    per_token = F.cross_entropy(logits.transpose(1, 2), batch.ids[:, 1:], reduction="none")
    mask = batch.mask[:, 1:]
    per_text = (per_token * mask).sum(1) / mask.sum(1)  # BUG
    return per_text.mean()


def main():
    torch.manual_seed(0)
    data = [Example(torch.randint(0, 20, (9,)), torch.ones(9)) for _ in range(40)]
    data[19].mask.zero_()
    loader = DataLoader(data, batch_size=5, shuffle=True)
    model = LM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for epoch in range(2):
        for batch in loader:
            loss = compute_loss(model, batch)
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("seen", len(losses))
    print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))


main()
