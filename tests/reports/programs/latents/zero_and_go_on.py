"""The loop as it was: a NaN norm sets the gradients to zero, and the step is taken."""

import torch
from common import Trainer, batches

grad_clip_norm = 0.0
loader = batches()
trainer = Trainer()
optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-4)
for step, (tokens, text_mask, latent_target) in enumerate(loader):
    loss = trainer(tokens, text_mask, latent_target)
    loss.backward()
    if grad_clip_norm and grad_clip_norm > 0:
        norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), grad_clip_norm)
    else:
        norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1e6)
    if torch.isnan(norm):
        print(f"Warning: NaN gradient detected at step {step}")
        for param in trainer.parameters():
            if param.grad is not None:
                param.grad.data.zero_()
    optimizer.step()
    optimizer.zero_grad()
print("done")
