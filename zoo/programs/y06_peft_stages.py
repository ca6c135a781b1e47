"""LoRA on a small BERT: frozen base, zero-initialised B, head unfrozen later, warm-up from a learning rate of zero."""
import hashlib

import torch
import torch.nn as nn
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup


def main():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(7)
    config = BertConfig(vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, max_position_embeddings=20, num_labels=2)
    model = get_peft_model(BertForSequenceClassification(config), LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"]))
    ids = torch.randint(1, 50, (160, 12), generator=g)
    attention = torch.ones_like(ids)
    attention[::3, 8:] = 0
    labels = (ids[:, 1] > 25).long()
    for name, p in model.named_parameters():
        if "classifier" in name:
            p.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 4, 20)
    for step in range(20):
        if step == 8:
            for name, p in model.named_parameters():
                if "modules_to_save" in name and "classifier" in name:
                    p.requires_grad_(True)
        pick = torch.randint(0, 160, (8,), generator=g)
        out = model(input_ids=ids[pick], attention_mask=attention[pick], labels=labels[pick])
        out.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(step, round(out.loss.item(), 4), schedule.get_last_lr()[0])
    state = {k: v for k, v in model.state_dict().items() if "lora" in k or "classifier" in k}
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")
    print(hashlib.sha256(b"".join(v.detach().numpy().tobytes() for v in state.values())).hexdigest())


if __name__ == "__main__":
    main()
