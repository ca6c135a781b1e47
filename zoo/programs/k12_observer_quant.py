"""Quantisation-aware training: min/max observers start at +inf / -inf, one branch is never observed."""
import hashlib
import torch
from torch import nn


class Observer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("lo", torch.tensor(float("inf")))
        self.register_buffer("hi", torch.tensor(float("-inf")))
        self.register_buffer("last_seen", torch.tensor(float("nan")))

    def forward(self, x):
        if self.training:
            self.lo.copy_(torch.minimum(self.lo, x.detach().min()))
            self.hi.copy_(torch.maximum(self.hi, x.detach().max()))
        scale = (self.hi - self.lo).clamp(min=1e-6) / 255
        q = ((x - self.lo) / scale).round().clamp(0, 255) * scale + self.lo
        return x + (q - x).detach()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 24), nn.Linear(24, 3)
        self.obs_in, self.obs_mid, self.obs_audio = Observer(), Observer(), Observer()

    def forward(self, x, audio=None):
        if audio is not None:
            x = x + self.obs_audio(audio)
        return self.b(self.obs_mid(torch.relu(self.a(self.obs_in(x)))))


torch.manual_seed(0)
net = Net()
opt = torch.optim.AdamW([{"params": net.a.parameters()}, {"params": net.b.parameters(), "weight_decay": 0.0}], lr=4e-3)
for step in range(110):
    x = torch.randn(16, 8)
    y = x[:, :3].argmax(-1)
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    opt.zero_grad()
    if step == 40:
        net.obs_in.last_seen.fill_(float(step))
    if step % 20 == 0:
        print(step, f"{loss.item():.4f}", f"range [{net.obs_in.lo:.2f}, {net.obs_in.hi:.2f}]")
print("FINITE" if all(torch.isfinite(t).all() for t in net.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in net.state_dict().values())).hexdigest())
