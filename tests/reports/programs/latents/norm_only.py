"""Only the norm is checked, after the clip, and the batch is skipped."""

import torch
from common import Trainer, batches

loader = batches()
trainer = Trainer()
optimizer = torch.optim.AdamW(trainer.parameters(), lr=5e-5)
for tokens, text_mask, latent_target in loader:
    optimizer.zero_grad()
    loss = trainer(tokens, text_mask, latent_target)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1.0)
    if torch.isnan(norm):
        continue
    optimizer.step()
print("done")
