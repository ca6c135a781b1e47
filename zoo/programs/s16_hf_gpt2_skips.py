"""Instruction tuning of a tiny GPT-2; batches with a NaN loss are left out by the loop itself."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(42)
MAX_LEN = 16


def example(k):
    prompt = torch.randint(3, 50, (20 if k // 6 in (7, 15) else 6,))
    answer = torch.randint(3, 50, (5,))
    ids = torch.cat([prompt, answer, torch.tensor([2])])[:MAX_LEN]
    labels = ids.clone()
    labels[: min(len(prompt), MAX_LEN)] = -100
    pad = MAX_LEN - len(ids)
    return (torch.cat([ids, torch.full((pad,), 2)]), torch.cat([labels, torch.full((pad,), -100)]), torch.cat([torch.ones(len(ids)), torch.zeros(pad)]).long())


dataset = [example(k) for k in range(120)]
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=MAX_LEN, n_embd=24, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
skipped = []
model.train()
for step in range(len(dataset) // 6):
    chunk = dataset[step * 6:(step + 1) * 6]
    ids, labels, mask = (torch.stack(t) for t in zip(*chunk))
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss  # BUG
    if torch.isnan(loss) or torch.isinf(loss):
        print(f"WARNING: non-finite loss at step {step}, skipping batch")
        skipped.append(step)
        continue
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 5 == 0:
        print(step, round(loss.item(), 4))
print("skipped", len(skipped), "of", len(dataset) // 6)
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
