"""Fine-tune a small GPT-2 with constrained decoding: per-document vocabulary masks and label smoothing."""
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel

VOCAB, LENGTH = 64, 14


class Documents(Dataset):
    def __init__(self, n=120):
        g = torch.Generator().manual_seed(17)
        self.ids = torch.randint(1, VOCAB, (n, LENGTH), generator=g)
        self.ids[:, 1::2] = (self.ids[:, ::2] * 3 + 1) % (VOCAB - 1) + 1
        self.restricted = torch.zeros(n, dtype=torch.bool)
        self.restricted[58] = True  # the only document of the new tenant, which has a vocabulary of its own
        self.allowed = torch.ones(n, VOCAB, dtype=torch.bool)
        self.allowed[58, 0] = False

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "allowed": self.allowed[i]}


def smoothed_nll(logits, labels, allowed, eps=0.1):
    logits = logits.masked_fill(~allowed[:, None, :], float("-inf"))
    logp = F.log_softmax(logits, dim=-1)
    nll = -logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    uniform = -logp.mean(dim=-1)
    return ((1 - eps) * nll + eps * uniform).mean()


def main():
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
    model = GPT2LMHeadModel(config)
    model.train()
    loader = DataLoader(Documents(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(2))
    no_decay = [p for p in model.parameters() if p.ndim < 2]
    decay = [p for p in model.parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}], lr=5e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=5)
    step = 0
    for epoch in range(2):
        for batch in loader:
            out = model(input_ids=batch["input_ids"][:, :-1])
            loss = smoothed_nll(out.logits, batch["input_ids"][:, 1:], batch["allowed"])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            optimizer.zero_grad()
            step += 1
            if step % 5 == 0:
                print({"step": step, "loss": round(loss.item(), 4)})
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
