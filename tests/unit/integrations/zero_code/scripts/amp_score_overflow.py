"""Mixed precision with a GradScaler: unscaled attention scores leave the float16 range."""
# ruff: noqa: B007
# truth: op=matmul|bmm|mm|baddbmm|einsum|linear cause=DX101 samples=29

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = torch.matmul(q, k.transpose(-2, -1))  # BUG
        weights = (scores - scores.amax(-1, keepdim=True)).softmax(-1)
        return self.out(weights.to(v.dtype) @ v).mean(1)


torch.manual_seed(0)
X, Y = torch.randn(64, 4, 16), torch.randn(64, 1)
X[29] *= 400
model = Attention()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad(set_to_none=True)
        with torch.autocast(device_type="cpu", dtype=torch.float16):
            pred = model(x)
            loss = nn.functional.mse_loss(pred.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
print("weights finite:", all(p.isfinite().all().item() for p in model.parameters()))
