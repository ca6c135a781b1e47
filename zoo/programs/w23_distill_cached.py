"""Distillation from cached teacher logits (stored as half to save disk)."""

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

TEMPERATURE = 2.0


class Cached(Dataset):
    def __init__(self, x, logits, y):
        self.x, self.y = x, y
        self.logits = logits.to(torch.float16)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.logits[i].float(), self.y[i]


def kd_loss(student, teacher, y, alpha=0.7):
    soft = F.softmax(teacher / TEMPERATURE, dim=-1)
    kd = F.kl_div(F.log_softmax(student / TEMPERATURE, -1), soft, reduction="batchmean") * TEMPERATURE ** 2
    return alpha * kd + (1 - alpha) * F.cross_entropy(student, y)


def main():
    torch.manual_seed(8)
    teacher = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 5))
    x = torch.randn(1200, 12)
    x[871] *= 3e5  # a row in other units
    with torch.no_grad():
        logits = teacher(x) * 4
    y = logits.argmax(-1)
    x = x.clamp(-8, 8)
    student = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    loader = DataLoader(Cached(x, logits, y), batch_size=24, shuffle=True)
    for epoch in range(2):
        hits = seen = 0
        for xb, tb, yb in loader:
            out = student(xb)
            loss = kd_loss(out, tb, yb)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(student.parameters(), 1.0)
            optimizer.step()
            hits += (out.argmax(-1) == yb).sum().item()
            seen += len(yb)
        print(f"epoch {epoch} accuracy {hits / seen:.3f} loss {loss.item():.4f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in student.state_dict().values()) else "POISONED")


if __name__ == "__main__":
    main()
