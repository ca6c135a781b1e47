"""Distilling a sharp teacher, KL written out by hand. Stops with an error when the loss is not a number."""
import torch
import torch.nn as nn

torch.manual_seed(8)
D, C = 12, 5
teacher = nn.Sequential(nn.Linear(D, 32), nn.ReLU(), nn.Linear(32, C))
student = nn.Sequential(nn.Linear(D, 8), nn.ReLU(), nn.Linear(8, C))
for p in teacher.parameters():
    p.requires_grad_(False)

inputs = torch.randn(600, D)
inputs[415] *= 5000.0  # logits far apart: the teacher is certain
labels = teacher(inputs).argmax(1)


def kd_loss(s_logits, t_logits, T=2.0):
    t = torch.softmax(t_logits / T, -1)
    s = torch.log_softmax(s_logits / T, -1)
    kl = (t * (torch.log(t) - s)).sum(-1)  # BUG
    return kl.mean() * T * T


def run_epoch(order, opt):
    total = 0.0
    for start in range(0, len(order), 30):
        idx = order[start:start + 30]
        x, y = inputs[idx], labels[idx]
        with torch.no_grad():
            t_logits = teacher(x)
        s_logits = student(x)
        loss = 0.5 * nn.functional.cross_entropy(s_logits, y) + 0.5 * kd_loss(s_logits, t_logits)
        if torch.isnan(loss):
            raise FloatingPointError(f"loss is nan at offset {start}")
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(idx)
    return total / len(order)


opt = torch.optim.Adam(student.parameters(), lr=2e-3)
for epoch in range(4):
    order = list(range(600))
    print("epoch", epoch, "loss", run_epoch(order, opt))
print("FINITE" if all(torch.isfinite(p).all() for p in student.parameters()) else "POISONED")
