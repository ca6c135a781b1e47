"""Tiny Llama from a config with left padding, masks of -inf inside the model and loss spikes by short batches."""
import hashlib

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def make_batch(k, g):
    width = 14 if k % 9 else 4
    ids = torch.randint(3, 40, (4, width), generator=g)
    mask = torch.ones_like(ids)
    for r in range(4):
        pad = int(torch.randint(0, width // 2, (1,), generator=g))
        ids[r, :pad], mask[r, :pad] = 0, 0
        ids[r, pad:] = 3 + (ids[r, pad] + torch.arange(width - pad) * 2) % 37
    if k % 25 == 24:
        ids = torch.where(mask.bool(), torch.randint(3, 40, ids.shape, generator=g), ids)  # pure noise now and then
    return dict(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100))


torch.manual_seed(0)
g = torch.Generator().manual_seed(10)
config = LlamaConfig(vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, attn_implementation="eager")
model = LlamaForCausalLM(config)
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
model.train()
for k in range(60):
    loss = model(**make_batch(k, g)).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    sched.step()
    opt.zero_grad()
    if k % 20 in (0, 4):
        print(k, round(loss.item(), 4))
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())
