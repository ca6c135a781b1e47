"""Distillation with Accelerate: KL to the teacher written out; batches with a NaN loss are left out by the loop itself."""
import torch
import torch.nn as nn
from accelerate import Accelerator


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 6))

    def forward(self, x):
        return self.f(x)


def kl(student_logits, teacher_logits, T=0.5):
    p = torch.softmax(teacher_logits / T, -1)
    log_q = torch.log_softmax(student_logits / T, -1)
    pointwise = p * (p.log() - log_q)
    return pointwise.sum(-1).mean() * T * T


def main():
    torch.manual_seed(13)
    accelerator = Accelerator(cpu=True)
    teacher, student = Net(64).eval(), Net(16)
    for p in teacher.parameters():
        p.requires_grad_(False)
    x = torch.randn(240, 10, generator=torch.Generator().manual_seed(2))
    x[139] *= 300
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=20)
    opt = torch.optim.Adam(student.parameters(), lr=2e-3)
    student, opt, loader = accelerator.prepare(student, opt, loader)
    skipped = 0
    for epoch in range(3):
        for (xb,) in loader:
            with torch.no_grad():
                t = teacher(xb)
            loss = kl(student(xb), t)
            if not torch.isfinite(loss):
                skipped += 1
                continue
            opt.zero_grad()
            accelerator.backward(loss)
            opt.step()
        print(epoch, loss.item(), "skipped", skipped)
    print("FINITE" if all(torch.isfinite(p).all() for p in student.parameters()) else "POISONED")


main()
