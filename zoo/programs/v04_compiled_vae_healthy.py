"""A compiled VAE with KL warm-up from zero and a rate that drops on a plateau; the best weights are kept, from an infinite start."""
import copy
import hashlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.dec = nn.Linear(12, 8), nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 12))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, 1)
        z = mu + (0.5 * logvar).exp() * torch.randn_like(mu)
        return self.dec(z), -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(1).mean()


def train(seed=0):
    torch.manual_seed(seed)
    model = VAE()
    net = torch.compile(model, backend="aot_eager")
    opt = torch.optim.Adamax(model.parameters(), 5e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.3)
    x = torch.randn(200, 12) * 2
    best, kept = float("inf"), None
    for epoch in range(6):
        net.train()
        for xb in x[:160].split(20):
            out, kl = net(xb)
            loss = F.mse_loss(out, xb, reduction="sum") / len(xb) + epoch / 5 * kl
            opt.zero_grad()
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            out, kl = net(x[160:180])
            score = F.mse_loss(out, x[160:180]).item()
        sched.step(score)
        if score < best:
            best, kept = score, copy.deepcopy(model.state_dict())
        print(epoch, score, opt.param_groups[0]["lr"])
    model.load_state_dict(kept)
    return model


m = train()
print("FINITE" if all(torch.isfinite(p).all() for p in m.parameters()) else "POISONED")
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in m.parameters())).hexdigest())
