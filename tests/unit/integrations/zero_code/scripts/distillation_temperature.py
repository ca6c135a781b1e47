"""Teacher and student: the annealed temperature reaches zero at the last step."""
# truth: op=div cause=DX201 samples=any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
teacher = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
student = nn.Linear(6, 4)
for p in teacher.parameters():
    p.requires_grad_(False)
loader = DataLoader(TensorDataset(torch.randn(80, 6), torch.randint(0, 4, (80,))), batch_size=8)
optimizer = torch.optim.Adam(student.parameters(), lr=1e-2)
num_steps = len(loader)
for step, (x, y) in enumerate(loader):
    temperature = 4.0 * (1 - (step + 1) / num_steps)
    with torch.no_grad():
        teacher_logits = teacher(x)
    student_logits = student(x)
    hard = F.cross_entropy(student_logits, y)
    soft = F.kl_div(
        F.log_softmax(student_logits / temperature, dim=-1),  # BUG
        F.softmax(teacher_logits / max(temperature, 1e-3), dim=-1),
        reduction="batchmean",
    )
    loss = 0.5 * hard + 0.5 * soft
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step:3d} {loss.item():.4f}")
print("weights finite:", all(p.isfinite().all().item() for p in student.parameters()))
