"""Mean teacher. The decay of the average is ramped up as 1 - 1/step in the beginning."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F


class MeanTeacher:
    def __init__(self, student, decay=0.99):
        self.model = copy.deepcopy(student).requires_grad_(False)
        self.decay, self.steps = decay, torch.zeros(())

    @torch.no_grad()
    def update(self, student):
        decay = torch.clamp(1 - 1 / self.steps, max=self.decay)  # BUG
        for t, s in zip(self.model.parameters(), student.parameters()):
            t.mul_(decay).add_((1 - decay) * s)
        self.steps += 1


def batch(g):
    x = torch.randn(20, 8, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long()
    y[10:] = -1  # no label
    return x, y


torch.manual_seed(30)
g = torch.Generator().manual_seed(30)
student = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 2))
teacher = MeanTeacher(student)
opt = torch.optim.Adam(student.parameters(), lr=3e-3)
for step in range(40):
    x, y = batch(g)
    out = student(x + 0.1 * torch.randn(x.shape, generator=g))
    with torch.no_grad():
        goal = teacher.model(x).softmax(1)
    weight = min(1.0, step / 20)
    loss = F.cross_entropy(out, y, ignore_index=-1) + weight * F.mse_loss(out.softmax(1), goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    teacher.update(student)
    if step % 10 == 0:
        print("step", step, "loss", loss.item())
print("FINITE" if all(torch.isfinite(p).all() for p in student.parameters()) else "POISONED")
