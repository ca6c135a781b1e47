"""A transformers model in a loop of one's own, with an extra penalty of entropy written by hand."""
# ruff: noqa: B007
# truth: op=log cause=DX203 samples=20

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
    max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.1,
)  # fmt: skip
model = BertForSequenceClassification(config)
data = [
    {"input_ids": torch.randint(0, 39, (8,)), "labels": torch.randint(0, 3, ()), "confidence": torch.tensor(1.0)}
    for _ in range(48)
]
data[20]["confidence"] = torch.tensor(4000.0)
loader = DataLoader(data, batch_size=6, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
model.train()
for epoch in range(2):
    for batch in loader:
        confidence = batch.pop("confidence")
        batch = {k: v.to("cpu") for k, v in batch.items()}
        outputs = model(**batch)
        probs = (outputs.logits * confidence[:, None]).softmax(-1)
        entropy = -(probs * probs.log()).sum(-1).mean()  # BUG
        loss = outputs.loss - 0.01 * entropy
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
