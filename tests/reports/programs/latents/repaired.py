"""The loop as the report repaired it: the loss is checked, then the norm, and the batch is skipped."""

import torch
from common import Trainer, batches

loader = batches()
trainer = Trainer()
optimizer = torch.optim.AdamW(trainer.parameters(), lr=5e-5)
for step, (tokens, text_mask, latent_target) in enumerate(loader):
    loss = trainer(tokens, text_mask, latent_target)
    if torch.isnan(loss) or torch.isinf(loss):
        print(f"ERROR: Invalid loss at step {step}: {loss.item()}")
        continue
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1.0)
    if torch.isnan(norm) or torch.isinf(norm):
        print(f"ERROR: NaN/Inf gradient norm at step {step}")
        optimizer.zero_grad(set_to_none=True)
        continue
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print("done")
