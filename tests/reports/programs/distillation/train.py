"""Knowledge distillation in the shape of the report: two terms, checks that skip a batch, and a stop after ten of them.

Row 37 holds a feature that the teacher's width does not survive: its logits are infinite, and the loss is NaN.
"""

import torch
import torch.nn.functional as F
from torch import nn

temperature, alpha_kd, alpha_ce = 4.0, 0.1, 0.9
torch.manual_seed(0)
torch.set_num_threads(1)
features = torch.randn(64, 8)
features[37, 2] = 1e30
labels = torch.randint(0, 4, (64,))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels), batch_size=4)
teacher = nn.Linear(8, 4)
student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-5)


def batch_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
    """kd + ce, or None for a batch whose loss is not finite."""
    with torch.no_grad():
        teacher_logits = teacher(x)
    logits = student(x).pow(2)
    kd = F.kl_div(
        F.log_softmax(logits / temperature, -1), F.softmax(teacher_logits / temperature, -1), reduction="batchmean"
    )
    ce = F.cross_entropy(logits, y)
    if torch.isnan(ce) or torch.isinf(ce):
        print(f"CE loss issue: {ce}, skipping batch")
        return None
    return alpha_kd * kd + alpha_ce * ce


consecutive_nan_batches = 0
for x, y in loader:
    loss = batch_loss(x, y)
    if loss is None:
        consecutive_nan_batches += 1
        if consecutive_nan_batches >= 10:
            print("Too many NaN batches, stopping training")
            break
        continue
    consecutive_nan_batches = 0
    optimizer.zero_grad()
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(student.parameters(), 0.5)
    if torch.isnan(grad_norm):
        print("Skipping unstable gradient step")
        continue
    optimizer.step()
print("done")
