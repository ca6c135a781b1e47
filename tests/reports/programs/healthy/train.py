"""A small regression that is healthy: what the checklists of the reports look like when they are met."""

import json

import torch
from safetensors.torch import save_file

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
log = []
for step in range(200):
    x = torch.randn(32, 8)
    loss = torch.nn.functional.mse_loss(model(x), x[:, :1].sin())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    optimizer.zero_grad()
    log.append({"step": step, "loss": loss.item(), "grad_norm": norm.item()})
with open("trainer_state.json", "w") as file:
    json.dump({"log_history": log}, file)
with open("metrics.json", "w") as file:
    json.dump({"accuracy": 0.5, "answer_rate": 1.0}, file)
with open("perplexity.json", "w") as file:
    json.dump({"perplexity": [[0, 20.0], [100, 17.5], [200, 15.0]]}, file)
save_file({name: weight.half() for name, weight in model.state_dict().items()}, "weights.safetensors")
print("done")
