"""LoRA on a tiny GPT-2, preference tuning with the loss written out as log(sigmoid(...))."""
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel


class Preferences(Dataset):
    def __init__(self, n=96, length=20):
        g = torch.Generator().manual_seed(19)
        self.good = torch.randint(1, 50, (n, length), generator=g)
        self.bad = torch.randint(1, 50, (n, length), generator=g)
        self.margin = torch.rand(n, generator=g)
        self.margin[70] = 900.0  # the annotators' score, in another unit

    def __len__(self):
        return len(self.good)

    def __getitem__(self, i):
        return self.good[i], self.bad[i], self.margin[i]


def sequence_logp(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    return torch.gather(logits.log_softmax(-1), 2, ids[:, 1:, None]).squeeze(2).sum(1)


def preference_loss(good, bad, margin, beta=0.2):
    p = torch.sigmoid(beta * (good - bad - margin))
    return -torch.log(p).mean()


def main():
    torch.manual_seed(22)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True))
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    loader = DataLoader(Preferences(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    model.train()
    for epoch in range(2):
        for good, bad, margin in loader:
            loss = preference_loss(sequence_logp(model, good), sequence_logp(model, bad), margin)
            loss.backward()
            opt.step()
            opt.zero_grad()
        print(epoch, loss.item())
    print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")


main()
